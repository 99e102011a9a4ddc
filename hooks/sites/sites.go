// Package sites reads the GatewaySyncs and ConfigSyncs of several clusters at once, each with the rights of its own context of the
// kubeconfig. No cluster waits for another, and one that does not answer is in the result, with the reason.
package sites

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/kube"
)

// Deadline bounds how long a cluster may take to answer.
const Deadline = 10 * time.Second

// Site is a cluster, and the namespace to read of it.
type Site struct {
	Context   string // name of the context of the kubeconfig
	Namespace string // "" for all
	Clients   kube.Clients
	// Err is why the context does not lead to a cluster; Clients is then unset. In an Answer, Err may also be why its GatewaySyncs cannot be read.
	Err error
}

// Answer is what was read of a site. With Err, nothing is known of its gateways.
type Answer struct {
	Site
	Fleets      []*v1alpha1.GatewaySync
	Undecodable []*kube.UndecodableError // GatewaySyncs and ConfigSyncs
	Leads       Leads
	ConfigSyncs []*v1alpha1.ConfigSync
	ConfigErr   error // why the ConfigSyncs could not be read
}

// Read reads all sites at the same time.
func Read(ctx context.Context, list []Site) []Answer {
	answers := make([]Answer, len(list))
	var all sync.WaitGroup
	for i, s := range list {
		all.Go(func() { answers[i] = s.read(ctx) })
	}
	all.Wait()
	return answers
}

// read reads the site within Deadline. It does not wait longer for a program of the kubeconfig that gets credentials: client-go does not end
// such a program.
func (s Site) read(ctx context.Context) Answer {
	if s.Err != nil {
		return Answer{Site: s}
	}
	ctx, cancel := context.WithTimeout(ctx, Deadline)
	defer cancel()
	done := make(chan Answer, 1)
	go func() { done <- s.ask(ctx) }()
	select {
	case a := <-done:
		return a
	case <-ctx.Done():
		late := s // the goroutine may still read s
		late.Err = &url.Error{Op: "Get", URL: s.Clients.Config.Host, Err: ctx.Err()}
		return Answer{Site: late}
	}
}

func (s Site) ask(ctx context.Context) Answer {
	a := Answer{Site: s}
	var all sync.WaitGroup
	var configs []*kube.UndecodableError
	all.Go(func() { a.Leads = ReadLeads(ctx, s.Clients.Dynamic, s.Namespace) })
	all.Go(func() {
		a.ConfigSyncs, configs, a.ConfigErr = kube.ConfigSyncs(s.Clients.Dynamic, s.Namespace).List(ctx, metav1.ListOptions{})
	})
	all.Go(func() {
		a.Fleets, a.Undecodable, a.Err = kube.GatewaySyncs(s.Clients.Dynamic, s.Namespace).List(ctx, metav1.ListOptions{})
	})
	all.Wait()
	a.Undecodable = append(a.Undecodable, configs...)
	slices.SortFunc(a.Fleets, func(x, y *v1alpha1.GatewaySync) int { return compare(x, y) })
	slices.SortFunc(a.ConfigSyncs, func(x, y *v1alpha1.ConfigSync) int { return compare(x, y) })
	return a
}

// Named returns the answer without ConfigSyncs, and with only the GatewaySync of each namespace that has this name.
func (a Answer) Named(name string) Answer {
	a.Fleets = slices.DeleteFunc(slices.Clone(a.Fleets), func(gs *v1alpha1.GatewaySync) bool { return gs.Name != name })
	a.Undecodable = slices.DeleteFunc(slices.Clone(a.Undecodable), func(u *kube.UndecodableError) bool { return u.Kind != v1alpha1.KindGatewaySync || u.Name != name })
	a.ConfigSyncs = nil
	return a
}

// compare orders objects by namespace and name.
func compare(x, y v1alpha1.Requestable) int {
	return strings.Compare(x.GetNamespace()+"/"+x.GetName(), y.GetNamespace()+"/"+y.GetName())
}

// Problem returns in one line why the objects of a kind could not be read, and what to do.
func Problem(err error, kind kube.Kind) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded), apierrors.IsTimeout(err):
		return "no answer within " + Deadline.String()
	case apierrors.IsUnauthorized(err):
		return "the API server rejects your credentials: log in again"
	case apierrors.IsForbidden(err):
		return "you may not list " + kind.Name + "s: the ClusterRole stoker-view grants the right"
	case apierrors.IsNotFound(err):
		return "the cluster does not serve " + kind.Name + "s: install the chart"
	}
	return "no answer: " + output.Shorten(Cause(err).Error())
}

// Cause returns an error without the method and the URL of the request. What remains names the address that was dialed.
func Cause(err error) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return failed.Err
	}
	return err
}

// LeadsUnread says what follows if SyncTargets cannot be read.
func LeadsUnread() string {
	return "SyncTargets cannot be read, so it takes up to " + v1alpha1.ConfirmedFor.String() + " to notice that no agent leads any more"
}

// Gaps returns what could not be read of sites that answered, a line each, and the number of sites that did not answer. rejected means that
// each of the latter rejected the user; it is true if there are none.
func Gaps(list []Answer) (notes []string, silent int, rejected bool) {
	rejected = true
	for _, a := range list {
		of := ""
		if len(list) > 1 {
			of = " of " + a.Context
		}
		if a.Err != nil {
			silent++
			rejected = rejected && (apierrors.IsForbidden(a.Err) || apierrors.IsUnauthorized(a.Err))
			continue
		}
		if a.Leads.Err != nil {
			notes = append(notes, output.OneLine(LeadsUnread()+of+": "+a.Leads.Err.Error()))
		}
		if a.ConfigErr != nil && !apierrors.IsNotFound(a.ConfigErr) {
			notes = append(notes, output.OneLine("ConfigSyncs"+of+" are not shown: "+Problem(a.ConfigErr, kube.ConfigSync)))
		}
	}
	return notes, silent, rejected
}

// Leads holds SyncTargets, which have the locks of the leads. If they cannot be read, Err says why, and the age of each status shows whether a
// lead is alive.
type Leads struct {
	Err     error
	targets map[types.NamespacedName]*v1alpha1.SyncTarget
}

// ReadLeads lists the SyncTargets of a namespace, or of all namespaces if it is "".
func ReadLeads(ctx context.Context, client dynamic.Interface, namespace string) Leads {
	list, undecodable, err := kube.SyncTargets(client, namespace).List(ctx, metav1.ListOptions{})
	l := Leads{err, map[types.NamespacedName]*v1alpha1.SyncTarget{}}
	for _, t := range list {
		l.targets[types.NamespacedName{Namespace: t.Namespace, Name: t.Name}] = t
	}
	for _, u := range undecodable { // of another version: the age of the status decides
		l.targets[types.NamespacedName{Namespace: u.Namespace, Name: u.Name}] = nil
	}
	return l
}

// Target returns the SyncTarget of gs: an empty one if there is none, nil if it is unknown.
func (l Leads) Target(gs *v1alpha1.GatewaySync) *v1alpha1.SyncTarget {
	t, ok := l.targets[types.NamespacedName{Namespace: gs.Namespace, Name: gs.Name}]
	if l.Err == nil && !ok {
		return &v1alpha1.SyncTarget{}
	}
	return t
}
