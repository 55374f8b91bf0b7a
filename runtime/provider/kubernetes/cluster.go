// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kubernetes

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

// callWait bounds a request to the API server. Most take milliseconds; an admission webhook may take 30 s.
const callWait = 40 * time.Second

// cluster is a namespace of a cluster. The clients are generic ones: those of client-go's clientset would bring the
// types of all API groups into the client library.
type cluster struct {
	context, namespace string
	host               string // address of the API server

	core     rest.Interface
	pods     *gentype.ClientWithList[*corev1.Pod, *corev1.PodList]
	secrets  *gentype.Client[*corev1.Secret]
	policies *gentype.Client[*networkingv1.NetworkPolicy]
	reviews  *gentype.Client[*authorizationv1.SelfSubjectAccessReview]
	upgrade  *http.Client // speaks HTTP/1.1 only, so that a connection can be upgraded
}

// connect finds the cluster as kubectl does: $KUBECONFIG, ~/.kube/config, or the cluster in which this process runs. It
// sends nothing.
func connect(contextName, namespace string) (*cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.WarnIfAllMissing = false // the error says it
	overrides := &clientcmd.ConfigOverrides{CurrentContext: contextName}
	overrides.Context.Namespace = namespace
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, configError(loader, contextName, err)
	}
	c := &cluster{context: contextName, namespace: namespace, host: config.Host}
	if c.namespace == "" {
		if c.namespace, _, err = loader.Namespace(); err != nil {
			return nil, configError(loader, contextName, err)
		}
	}
	if raw, err := loader.RawConfig(); err == nil && c.context == "" {
		c.context = raw.CurrentContext
	}
	if err := c.clients(config); err != nil {
		return nil, configError(loader, contextName, err)
	}
	return c, nil
}

// configError says what is wrong with a configuration.
func configError(loader clientcmd.ClientConfig, contextName string, err error) error {
	raw, rawErr := loader.RawConfig()
	switch {
	case rawErr != nil:
		return provider.Errorf(provider.ErrInvalidSpec, "The kubeconfig cannot be read: %v. Correct it; kubectl config view "+
			"reads it too.", rawErr)
	case len(raw.Clusters) == 0 && len(raw.Contexts) == 0:
		return provider.Errorf(provider.ErrNotFound, "There is no kubeconfig, and this process does not run in a cluster. "+
			"Set KUBECONFIG to the path of one, or get one for ~/.kube/config from the provider of your cluster.")
	case contextName != "" && raw.Contexts[contextName] == nil:
		return provider.Errorf(provider.ErrInvalidSpec, "The kubeconfig has no context %q; it has %s.", contextName,
			quoted(slices.Sorted(maps.Keys(raw.Contexts))))
	case contextName == "" && raw.CurrentContext == "":
		return provider.Errorf(provider.ErrInvalidSpec, "The kubeconfig has no current context. Choose one with context=…, "+
			"or kubectl config use-context; it has %s.", quoted(slices.Sorted(maps.Keys(raw.Contexts))))
	}
	return provider.Errorf(provider.ErrInvalidSpec, "The kubeconfig cannot be used: %v. Correct it; kubectl cluster-info "+
		"tries it too.", err)
}

func quoted(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return `"` + strings.Join(names, `", "`) + `"`
}

// clients makes the clients of a configuration.
func (c *cluster) clients(config *rest.Config) error {
	config = rest.CopyConfig(config)
	config.UserAgent = "mycelya/" + transport.Build
	config.QPS = -1                           // the server has its own limits
	config.WarningHandler = rest.NoWarnings{} // the default one prints to stderr
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, networkingv1.AddToScheme,
		authorizationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	words := runtime.NewParameterCodec(scheme)
	var groups [3]rest.Interface
	for i, g := range []schema.GroupVersion{corev1.SchemeGroupVersion, networkingv1.SchemeGroupVersion,
		authorizationv1.SchemeGroupVersion} {
		of := rest.CopyConfig(config)
		of.GroupVersion, of.APIPath = &g, "/apis"
		if g.Group == "" {
			of.APIPath = "/api"
		}
		client, err := rest.RESTClientFor(of)
		if err != nil {
			return err
		}
		groups[i] = client
	}
	c.core = groups[0]
	c.pods = gentype.NewClientWithList("pods", groups[0], words, c.namespace,
		func() *corev1.Pod { return new(corev1.Pod) }, func() *corev1.PodList { return new(corev1.PodList) })
	c.secrets = gentype.NewClient("secrets", groups[0], words, c.namespace,
		func() *corev1.Secret { return new(corev1.Secret) })
	c.policies = gentype.NewClient("networkpolicies", groups[1], words, c.namespace,
		func() *networkingv1.NetworkPolicy { return new(networkingv1.NetworkPolicy) })
	c.reviews = gentype.NewClient("selfsubjectaccessreviews", groups[2], words, "",
		func() *authorizationv1.SelfSubjectAccessReview { return new(authorizationv1.SelfSubjectAccessReview) })

	old := rest.CopyConfig(config)
	old.NextProtos = []string{"http/1.1"}
	over, err := rest.TransportFor(old)
	c.upgrade = &http.Client{Transport: over}
	return err
}

// call runs a request with a limit of time.
func call[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callWait)
	defer cancel()
	return f(ctx)
}

// pod returns a pod with its name.
func (c *cluster) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	return call(ctx, func(ctx context.Context) (*corev1.Pod, error) { return c.pods.Get(ctx, name, metav1.GetOptions{}) })
}

// podsOf returns the pods of a user.
func (c *cluster) podsOf(ctx context.Context, user string) ([]corev1.Pod, error) {
	list, err := call(ctx, func(ctx context.Context) (*corev1.PodList, error) {
		return c.pods.List(ctx, metav1.ListOptions{LabelSelector: selector(user)})
	})
	if err != nil {
		return nil, c.explain("list pods", err)
	}
	return list.Items, nil
}

// log returns the end of the log of a pod's container; "" if there is none.
func (c *cluster) log(ctx context.Context, name string) string {
	ctx, cancel := context.WithTimeout(ctx, logWait)
	defer cancel()
	text, err := c.core.Get().Namespace(c.namespace).Resource("pods").Name(name).SubResource("log").
		Param("container", ContainerName).Param("tailLines", "200").Param("limitBytes", "65536").DoRaw(ctx)
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(string(text), "?")
}

// logWait bounds the request for a log, which is only a part of a message.
const logWait = 5 * time.Second

// kubectl is the beginning of a command that users can run to look at the same namespace.
func (c *cluster) kubectl() string {
	out := "kubectl"
	if c.context != "" {
		out += " --context " + c.context
	}
	return out + " -n " + c.namespace
}
