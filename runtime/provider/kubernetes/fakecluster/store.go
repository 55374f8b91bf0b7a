// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fakecluster

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// podObject is a pod.
type podObject = corev1.Pod

// object is what a store has.
type object interface {
	metav1.Object
	runtime.Object
}

// event is a change of a pod.
type event struct {
	version int
	kind    watch.EventType
	pod     *podObject
}

// store has the objects of a cluster by their resource, namespace and name.
type store struct {
	mu      sync.Mutex // guards what follows
	objects map[string]object
	version int
	events  []event
	changed chan struct{} // closed and replaced at each change
	round   int           // of watches; cut begins the next one
	late    bool          // what belongs to a pod stays when the pod goes
	garbage []types.UID   // pods whose belongings have stayed
}

func newStore() *store { return &store{objects: map[string]object{}, changed: make(chan struct{})} }

func key(resource, namespace, name string) string { return resource + "/" + namespace + "/" + name }

// names are the keys of all objects.
func (s *store) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]string, 0, len(s.objects))
	for k := range s.objects {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// wake tells those who wait that something has changed. The caller holds the lock.
func (s *store) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// cut ends all watches.
func (s *store) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.round++
	s.wake()
}

// write stores an object under a new version. The caller holds the lock.
func (s *store) write(k string, o object, kind watch.EventType) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	if kind == watch.Deleted {
		delete(s.objects, k)
	} else {
		s.objects[k] = o
	}
	if pod, ok := o.(*podObject); ok {
		s.events = append(s.events, event{s.version, kind, pod.DeepCopy()})
	}
	s.wake()
}

// create stores a new object; false: there is one.
func (s *store) create(k string, o object) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[k] != nil {
		return false
	}
	s.write(k, o, watch.Added)
	return true
}

// get returns a copy of an object; nil: there is none.
func (s *store) get(k string) object {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[k]
	if !ok {
		return nil
	}
	return o.DeepCopyObject().(object)
}

// pod returns a copy of a pod by its name, in any namespace.
func (s *store) pod(name string) *podObject {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.find(name); p != nil {
		return p.DeepCopy()
	}
	return nil
}

// find returns a pod by its name. The caller holds the lock.
func (s *store) find(name string) *podObject {
	for k, o := range s.objects {
		if p, ok := o.(*podObject); ok && strings.HasSuffix(k, "/"+name) {
			return p
		}
	}
	return nil
}

// list returns copies of the objects of a resource in a namespace, in order, and the version.
func (s *store) list(resource, namespace string) (out []object, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, o := range s.objects {
		if strings.HasPrefix(k, key(resource, namespace, "")) {
			out = append(out, o.DeepCopyObject().(object))
		}
	}
	slices.SortFunc(out, func(a, b object) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out, strconv.Itoa(s.version)
}

// pods returns copies of all pods.
func (s *store) pods() (out []*podObject) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.objects {
		if p, ok := o.(*podObject); ok {
			out = append(out, p.DeepCopy())
		}
	}
	return out
}

// change changes a pod by its name; false: there is none.
func (s *store) change(name string, f func(*podObject)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.find(name)
	if p == nil {
		return false
	}
	s.set(p, f)
	return true
}

// changeUID changes the pod with a UID; false: there is none.
func (s *store) changeUID(uid types.UID, f func(*podObject)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.objects {
		if p, ok := o.(*podObject); ok && p.UID == uid {
			s.set(p, f)
			return true
		}
	}
	return false
}

// set stores a changed copy of a pod. The caller holds the lock.
func (s *store) set(p *podObject, f func(*podObject)) {
	p = p.DeepCopy()
	f(p)
	s.write(key("pods", p.Namespace, p.Name), p, watch.Modified)
}

// remove removes the pod with a UID, and what belongs to it.
func (s *store) remove(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, o := range s.objects {
		if o.GetUID() == uid {
			s.write(k, o.DeepCopyObject().(object), watch.Deleted)
		}
	}
	if s.late {
		s.garbage = append(s.garbage, uid)
		return
	}
	s.collect(uid)
}

// collectLate makes what belongs to a pod stay when the pod goes, or removes what has stayed.
func (s *store) collectLate(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late = yes
	for _, uid := range s.garbage {
		s.collect(uid)
	}
	s.garbage = nil
}

// collect removes what belongs to a pod. The caller holds the lock.
func (s *store) collect(uid types.UID) {
	for k, o := range s.objects {
		for _, owner := range o.GetOwnerReferences() {
			if owner.UID == uid {
				s.write(k, o.DeepCopyObject().(object), watch.Deleted)
				break
			}
		}
	}
}

// after returns the events after a version, and a channel that is closed at the next change. round is that of the
// watches.
func (s *store) after(version int) (out []event, changed <-chan struct{}, round int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.version > version {
			out = append(out, e)
		}
	}
	return out, s.changed, s.round
}
