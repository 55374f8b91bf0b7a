// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fakecluster

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// path is that of an object or of a list: group, namespace, resource, name, subresource.
var path = regexp.MustCompile(
	`^/(?:api/v1|apis/([a-z.0-9]+)/v1)/namespaces/([^/]+)/([a-z]+)(?:/([^/]+))?(?:/([a-z]+))?$`)

const reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

// kinds are the kinds of the resources.
var kinds = map[string]metav1.TypeMeta{
	"pods":            {APIVersion: "v1", Kind: "Pod"},
	"secrets":         {APIVersion: "v1", Kind: "Secret"},
	"networkpolicies": {APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
}

// fail answers with an error of the API.
func fail(w http.ResponseWriter, err apierrors.APIStatus) {
	s := err.Status()
	s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	s.Status = metav1.StatusFailure
	answer(w, int(s.Code), s)
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func (c *Cluster) serve(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.requests++
	c.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer "+c.token {
		fail(w, apierrors.NewUnauthorized("Unauthorized"))
		return
	}
	if r.URL.Path == reviews {
		c.review(w, r)
		return
	}
	m := path.FindStringSubmatch(r.URL.Path)
	if m == nil || kinds[m[3]].Kind == "" {
		fail(w, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{}, "", "", 0, false))
		return
	}
	namespace, resource, name, sub := m[2], m[3], m[4], m[5]
	verb := verbOf(r, name)
	whole := resource
	if sub != "" {
		whole += "/" + sub
	}
	if s := c.refused(verb, whole); s != nil {
		fail(w, &apierrors.StatusError{ErrStatus: *s})
		return
	}
	if !c.hasNamespace(namespace) && verb == "create" {
		fail(w, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, namespace))
		return
	}
	at := key(resource, namespace, name)
	missing := apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name)
	switch {
	case sub == "" && verb == "create":
		c.create(w, r, namespace, resource)
	case sub == "" && verb == "list":
		c.list(w, r, namespace, resource)
	case sub == "" && verb == "watch":
		c.watch(w, r, namespace)
	case c.store.get(at) == nil:
		fail(w, missing)
	case sub == "" && verb == "get":
		answer(w, http.StatusOK, c.store.get(at))
	case sub == "" && verb == "delete" && resource == "pods":
		c.delete(w, r, namespace, name)
	case sub == "log":
		_, _ = io.WriteString(w, c.logOf(name))
	case sub == "portforward":
		c.forward(w, r, name)
	default:
		fail(w, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: resource}, verb))
	}
}

// verbOf is the verb of a request, as roles have it.
func verbOf(r *http.Request, name string) string {
	switch {
	case r.Method == http.MethodPost:
		return "create"
	case r.Method == http.MethodDelete:
		return "delete"
	case name != "":
		return "get"
	case r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1":
		return "watch"
	}
	return "list"
}

func (c *Cluster) hasNamespace(name string) bool {
	for _, n := range append([]string{"default"}, c.config.Namespaces...) {
		if n == name {
			return true
		}
	}
	return false
}

func (c *Cluster) create(w http.ResponseWriter, r *http.Request, namespace, resource string) {
	var o object
	switch resource {
	case "pods":
		o = new(corev1.Pod)
	case "secrets":
		o = new(corev1.Secret)
	case "networkpolicies":
		o = new(networkingv1.NetworkPolicy)
	}
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(o); err != nil {
		fail(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	if errs := validate(o); len(errs) > 0 {
		fail(w, apierrors.NewInvalid(schema.GroupKind{Kind: kinds[resource].Kind}, o.GetName(), errs))
		return
	}
	o.SetNamespace(namespace)
	o.SetUID(types.UID(rand.Text()))
	o.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	of := kinds[resource]
	o.GetObjectKind().SetGroupVersionKind(of.GroupVersionKind())
	at := key(resource, namespace, o.GetName())
	pod, isPod := o.(*corev1.Pod)
	if isPod {
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	}
	exists := c.store.get(at) != nil
	real := r.URL.Query().Get("dryRun") == ""
	var run *running
	if real && !exists {
		if isPod {
			run = c.adopt(pod.UID)
		}
		exists = !c.store.create(at, o)
	}
	if exists {
		c.disown(o.GetUID())
		fail(w, apierrors.NewAlreadyExists(schema.GroupResource{Resource: resource}, o.GetName()))
		return
	}
	if run != nil {
		go run.run(pod.DeepCopy())
	}
	if real && c.losesAnswer() {
		panic(http.ErrAbortHandler)
	}
	answer(w, http.StatusCreated, o)
}

// selects parses the selectors of a request.
func selects(r *http.Request) (func(object) bool, error) {
	byLabel, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return nil, err
	}
	byField, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		return nil, err
	}
	return func(o object) bool {
		return byLabel.Matches(labels.Set(o.GetLabels())) && byField.Matches(fields.Set{"metadata.name": o.GetName()})
	}, nil
}

func (c *Cluster) list(w http.ResponseWriter, r *http.Request, namespace, resource string) {
	fits, err := selects(r)
	if err != nil {
		fail(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	all, version := c.store.list(resource, namespace)
	items := []object{}
	for _, o := range all {
		if fits(o) {
			items = append(items, o)
		}
	}
	of := kinds[resource]
	answer(w, http.StatusOK, map[string]any{"apiVersion": of.APIVersion, "kind": of.Kind + "List",
		"metadata": metav1.ListMeta{ResourceVersion: version}, "items": items})
}

// tooOld says whether this watch begins with the answer that its version is too old.
func (c *Cluster) tooOld() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expired--
	if c.expired < 0 {
		c.expired = 0
		return false
	}
	return true
}

func (c *Cluster) watch(w http.ResponseWriter, r *http.Request, namespace string) {
	fits, err := selects(r)
	version, err2 := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil || err2 != nil {
		fail(w, apierrors.NewBadRequest(fmt.Sprint("a watch without a version, or with a wrong selector: ", err)))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	out := json.NewEncoder(w)
	flush := w.(http.Flusher).Flush
	_, _, first := c.store.after(version) // first: CutWatches ends this watch, whenever it comes
	if c.tooOld() {
		s := apierrors.NewResourceExpired("too old resource version").Status()
		s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		_ = out.Encode(map[string]any{"type": watch.Error, "object": s})
		return
	}
	flush()
	for {
		events, changed, round := c.store.after(version)
		for _, e := range events {
			version = e.version
			if e.pod.Namespace == namespace && fits(e.pod) {
				if out.Encode(map[string]any{"type": e.kind, "object": e.pod}) != nil {
					return
				}
			}
		}
		flush()
		if round != first {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func (c *Cluster) delete(w http.ResponseWriter, r *http.Request, namespace, name string) {
	var options metav1.DeleteOptions
	if text, err := io.ReadAll(r.Body); err != nil || len(text) > 0 && json.Unmarshal(text, &options) != nil {
		fail(w, apierrors.NewBadRequest("delete options"))
		return
	}
	uid, grace := types.UID(""), int64(30)
	if options.Preconditions != nil && options.Preconditions.UID != nil {
		uid = *options.Preconditions.UID
	}
	if options.GracePeriodSeconds != nil {
		grace = *options.GracePeriodSeconds
	}
	pod, _ := c.store.get(key("pods", namespace, name)).(*corev1.Pod)
	if pod != nil && uid != "" && pod.UID != uid {
		fail(w, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, name, fmt.Errorf("the UID is %s", pod.UID)))
		return
	}
	c.deletePod(name, uid, grace)
	answer(w, http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status: metav1.StatusSuccess})
}

// review answers whether the user may do something: what a Fault does not refuse.
func (c *Cluster) review(w http.ResponseWriter, r *http.Request) {
	var review authorizationv1.SelfSubjectAccessReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Spec.ResourceAttributes == nil {
		fail(w, apierrors.NewBadRequest("a review without a question"))
		return
	}
	of := review.Spec.ResourceAttributes
	resource := strings.TrimSuffix(of.Resource+"/"+of.Subresource, "/")
	review.Status.Allowed = c.refused(of.Verb, resource) == nil
	answer(w, http.StatusCreated, review)
}
