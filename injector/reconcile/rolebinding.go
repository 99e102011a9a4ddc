package reconcile

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/backoff"
)

const (
	// agentRole is the ClusterRole of agents and the name of the RoleBinding in each namespace.
	agentRole = "stoker-agent"
	// managedByLabel with the value managedBy marks the RoleBindings that the reconciler manages.
	managedByLabel, managedBy = "app.kubernetes.io/managed-by", "stoker-injector"
	// unusedTimeout is how long a ServiceAccount keeps its rights after its last pod, because pods are replaced one by one.
	unusedTimeout = 10 * time.Minute
	// compareInterval is how often a RoleBinding is verified when nothing changed.
	compareInterval = 5 * time.Minute
	// maxListPause bounds the pause before a failed list of RoleBindings is repeated.
	maxListPause = 10 * time.Minute
	// maxBindings bounds the list of RoleBindings that an earlier replica created.
	maxBindings = 5000
	// maxSubjects bounds a RoleBinding.
	maxSubjects = 1000
)

// bind grants rights to the agents of a namespace that has a GatewaySync, even one that cannot be decoded, because its lead
// must report that. It binds the ServiceAccounts of pods that ask for an agent or have one. In a namespace with injection
// disabled, pods that only ask do not count.
func (u *Reconciler) bind(ctx context.Context, n *namespace, hasGatewaySync bool, pods []*corev1.Pod, now time.Time) error {
	if !u.AutoBind || u.Scope.Excluded(n.name) != "" {
		n.bound = false
		return nil
	}
	var labelsErr error
	if hasGatewaySync {
		for _, p := range pods {
			if !inject.Has(p) {
				if out, err := u.excluded(ctx, n, now); err != nil || out != "" {
					labelsErr = err
					continue
				}
			}
			n.accounts[serviceAccount(p)] = now
		}
	}
	var names []string
	for name, at := range n.accounts {
		if now.Sub(at) > unusedTimeout {
			delete(n.accounts, name)
			continue
		}
		names = append(names, name)
	}
	slices.Sort(names)
	names = names[:min(len(names), maxSubjects)]
	if slices.Equal(names, n.subjects) && now.Sub(n.checked) < compareInterval {
		return labelsErr
	}
	if err := u.updateBinding(ctx, n, names, now); err != nil {
		return fmt.Errorf("RoleBinding %s/%s: %w", n.name, agentRole, err)
	}
	return labelsErr
}

// queueBound queues the namespaces with a RoleBinding of ours, because everything else in them may be gone. It repeats lists that fail
// until ctx is done.
func (u *Reconciler) queueBound(ctx context.Context) {
	if !u.AutoBind {
		return
	}
	rest := u.Scope.Namespaces()
	for failures := 1; ; failures++ {
		rest = slices.DeleteFunc(rest, func(ns string) bool {
			list, err := u.Core.RbacV1().RoleBindings(ns).List(ctx, metav1.ListOptions{LabelSelector: managedByLabel + "=" + managedBy, Limit: maxBindings})
			if err != nil {
				u.Log.Warn("listing RoleBindings failed", "namespace", ns, "error", err)
				return false
			}
			for i := range list.Items {
				u.Changed(list.Items[i].Namespace)
			}
			return true
		})
		if len(rest) == 0 || !backoff.Wait(ctx, backoff.Retry(failures, maxListPause)) {
			return
		}
	}
}

func serviceAccount(p *corev1.Pod) string {
	if p.Spec.ServiceAccountName == "" {
		return "default"
	}
	return p.Spec.ServiceAccountName
}

// updateBinding creates, updates or deletes the RoleBinding, so that its subjects are names. Until the reconciler knows which
// ServiceAccounts are unused, it only adds subjects. If the RoleBinding is for another role, it deletes it and creates it again. It leaves a
// RoleBinding of another manager unchanged.
func (u *Reconciler) updateBinding(ctx context.Context, n *namespace, names []string, now time.Time) error {
	bindings := u.Core.RbacV1().RoleBindings(n.name)
	existing, err := bindings.Get(ctx, agentRole, metav1.GetOptions{})
	absent := apierrors.IsNotFound(err)
	if err != nil && !absent {
		return err
	}
	err = nil
	wanted := binding(n.name, names)
	switch {
	case !absent && existing.Labels[managedByLabel] != managedBy:
		if !n.foreignLogged {
			u.Log.Warn("RoleBinding belongs to another manager", "namespace", n.name, "name", agentRole)
		}
		n.foreignLogged = true
	case absent && len(names) > 0:
		_, err = bindings.Create(ctx, wanted, metav1.CreateOptions{FieldManager: fieldManager})
		u.logBinding("RoleBinding created", n, names, err)
	case !absent && (len(names) == 0 && n.knowsAccounts(now) || existing.RoleRef != wanted.RoleRef):
		err = bindings.Delete(ctx, agentRole, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(existing.UID))})
		u.logBinding("RoleBinding deleted", n, nil, err)
		if err == nil && len(names) > 0 {
			_, err = bindings.Create(ctx, wanted, metav1.CreateOptions{FieldManager: fieldManager})
			u.logBinding("RoleBinding created", n, names, err)
		}
		absent = true
	case !absent && len(names) > 0:
		subjects := wanted.Subjects
		if !n.knowsAccounts(now) {
			subjects = union(existing.Subjects, subjects)
		}
		if !equality.Semantic.DeepEqual(existing.Subjects, subjects) {
			existing = existing.DeepCopy()
			existing.Subjects = subjects
			_, err = bindings.Update(ctx, existing, metav1.UpdateOptions{FieldManager: fieldManager})
			u.logBinding("RoleBinding updated", n, names, err)
		}
	}
	if err != nil && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return err
	}
	n.bound = len(names) > 0 || !absent
	n.subjects, n.checked = names, now
	return nil
}

func (u *Reconciler) logBinding(event string, n *namespace, names []string, err error) {
	if err == nil {
		u.Log.Info(event, "namespace", n.name, "serviceAccounts", names)
	}
}

// knowsAccounts reports whether the reconciler has watched the namespace long enough to know which ServiceAccounts are unused.
func (n *namespace) knowsAccounts(now time.Time) bool {
	return now.Sub(n.since) > unusedTimeout
}

// union returns existing with the missing subjects of more, sorted by name.
func union(existing, more []rbacv1.Subject) []rbacv1.Subject {
	out := slices.Clone(existing)
	for _, s := range more {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b rbacv1.Subject) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func binding(namespace string, accounts []string) *rbacv1.RoleBinding {
	b := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: agentRole, Labels: map[string]string{
			managedByLabel: managedBy, "app.kubernetes.io/part-of": "stoker", "app.kubernetes.io/component": "agent",
		}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: agentRole},
	}
	for _, name := range accounts {
		b.Subjects = append(b.Subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: namespace})
	}
	return b
}
