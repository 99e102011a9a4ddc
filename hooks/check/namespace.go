package check

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// namespace checks the gateways of a namespace.
func (l Checker) namespace(ctx context.Context, d doors) []Finding {
	found, bad, err := kube.GatewaySyncs(l.Dynamic, l.Namespace).List(ctx, metav1.ListOptions{Limit: maxList})
	if err != nil {
		return []Finding{syncs.unseen("GatewaySyncs of namespace "+l.Namespace, err)}
	}
	var list []Finding
	for _, u := range bad {
		list = append(list, syncs.on(Failed, u.Error()))
	}
	for _, gs := range found {
		list = append(list, l.sync(ctx, gs))
		for _, w := range validation.Warnings(gs) {
			list = append(list, syncs.on(Warning, gs.Name+": "+w))
		}
	}
	if len(list) == 0 {
		list = append(list, syncs.on(Warning, "there is no GatewaySync in namespace "+l.Namespace+"; choose another namespace with --namespace"))
	}
	list = append(list, l.pods(ctx, found)...)
	for _, gs := range found {
		list = append(list, l.lead(ctx, gs)...)
	}
	list = append(list, l.asked(ctx, found, d)...)
	return append(list, l.rights(ctx)...)
}

// sync reports the verdict on one GatewaySync.
func (l Checker) sync(ctx context.Context, gs *v1alpha1.GatewaySync) Finding {
	v, _ := request.Look(ctx, l.Clients, gs, "") // without the right to read SyncReports, failures show later
	switch v.Phase {
	case request.Succeeded:
		return syncs.because(OK, v.Reason, gs.Name+": "+v.Message)
	case request.Failed:
		return syncs.because(Failed, v.Reason, gs.Name+": "+v.Message)
	}
	return syncs.because(Warning, v.Reason, gs.Name+": "+v.Message)
}

// pods checks whether each pod that requests an agent has one that may report.
func (l Checker) pods(ctx context.Context, found []*v1alpha1.GatewaySync) []Finding {
	all, err := l.Core.CoreV1().Pods(l.Namespace).List(ctx, metav1.ListOptions{Limit: maxList})
	if err != nil {
		return []Finding{pods.unseen("pods of namespace "+l.Namespace, err)}
	}
	var list []Finding
	var accounts []string
	asked := 0
	for i := range all.Items {
		p := &all.Items[i]
		inject, _ := v1alpha1.PodAnnotation(p.Annotations, v1alpha1.AnnotationInject)
		if inject != "" && inject != "true" && inject != "false" {
			list = append(list, pods.because(Warning, v1alpha1.ReasonNotRequested, fmt.Sprintf("%s: the annotation %s is %.20q, which requests nothing: use \"true\"", p.Name, v1alpha1.AnnotationInject, inject)))
		}
		if inject != "true" || p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		asked++
		f, bad := pod(p, found)
		if bad {
			list = append(list, f)
		}
		if hasAgent(p) {
			accounts = append(accounts, p.Spec.ServiceAccountName)
		}
	}
	switch {
	case asked == 0:
		list = append(list, pods.because(Warning, v1alpha1.ReasonNoGateways, "no pod of namespace "+l.Namespace+" requests an agent: annotate gateways with "+v1alpha1.AnnotationInject+`: "true"`))
	case len(list) == 0:
		list = append(list, pods.on(OK, fmt.Sprintf("all %d pods that request an agent have one", asked)))
	}
	slices.Sort(accounts)
	return append(list, l.bindings(ctx, slices.Compact(accounts))...)
}

// pod returns what is wrong with a pod that requests an agent.
func pod(p *corev1.Pod, found []*v1alpha1.GatewaySync) (Finding, bool) {
	name, _ := v1alpha1.PodAnnotation(p.Annotations, v1alpha1.AnnotationCRName)
	known := slices.ContainsFunc(found, func(gs *v1alpha1.GatewaySync) bool { return gs.Name == name })
	switch {
	case name != "" && !known:
		return pods.because(Failed, v1alpha1.ReasonGatewaySyncNotFound, fmt.Sprintf("%s requests GatewaySync %s, which does not exist in this namespace", p.Name, name)), true
	case name == "" && len(found) > 1:
		return pods.because(Failed, v1alpha1.ReasonGatewaySyncAmbiguous, fmt.Sprintf("%s does not name one of %d GatewaySyncs: annotate it with %s", p.Name, len(found), v1alpha1.AnnotationCRName)), true
	case foreignAgent(p):
		return pods.because(Failed, v1alpha1.ReasonMissingSidecar, p.Name+": its container "+v1alpha1.AgentContainer+" belongs to another program, so the pod has no agent: see 'stoker migrate' and docs/how-to/migration.md"), true
	case !hasAgent(p):
		return pods.because(Failed, v1alpha1.ReasonMissingSidecar, p.Name+" requests an agent and has none: see the Events of the pod"), true
	}
	if why := agentWaits(p); why != "" {
		return pods.on(Failed, p.Name+": its agent does not start: "+why), true
	}
	return Finding{}, false
}

func hasAgent(p *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers), func(c corev1.Container) bool { return c.Name == v1alpha1.AgentContainer })
}

// foreignAgent reports whether the agent's container belongs to another program.
func foreignAgent(p *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers), func(c corev1.Container) bool { return v1alpha1.IsForeignAgent(&c) })
}

// agentWaits returns why the agent of a pod does not run, in the words of the kubelet: its image cannot be pulled, or it crashes
// again and again. It ignores the states of a normal start.
func agentWaits(p *corev1.Pod) string {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		w := c.State.Waiting
		if c.Name != v1alpha1.AgentContainer || w == nil || w.Reason == "" || w.Reason == "PodInitializing" || w.Reason == "ContainerCreating" {
			continue
		}
		if w.Message == "" {
			return w.Reason
		}
		return w.Reason + ": " + w.Message
	}
	return ""
}

// bindings checks whether the ServiceAccounts of the agents may report.
func (l Checker) bindings(ctx context.Context, accounts []string) []Finding {
	if len(accounts) == 0 {
		return nil
	}
	found, err := l.Core.RbacV1().RoleBindings(l.Namespace).List(ctx, metav1.ListOptions{Limit: maxList})
	if err != nil {
		return []Finding{bindings.unseen("RoleBindings of namespace "+l.Namespace, err)}
	}
	bound := map[string]bool{}
	for i := range found.Items {
		b := &found.Items[i]
		if b.RoleRef.Kind != "ClusterRole" || b.RoleRef.Name != agentRole {
			continue
		}
		for _, s := range b.Subjects {
			if s.Kind == rbacv1.ServiceAccountKind && s.Namespace == l.Namespace {
				bound[s.Name] = true
			}
		}
	}
	var missing []string
	for _, a := range accounts {
		if !bound[a] {
			missing = append(missing, a)
		}
	}
	if len(missing) > 0 {
		return []Finding{bindings.on(Failed, "no RoleBinding grants ClusterRole "+agentRole+" to ServiceAccount "+strings.Join(missing, ", ")+": its agents cannot report")}
	}
	// A binding grants nothing if its role does not exist or does not allow writing reports.
	role, err := l.Core.RbacV1().ClusterRoles().Get(ctx, agentRole, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return []Finding{bindings.on(Failed, "ClusterRole "+agentRole+" of the agents does not exist, so they cannot report: install the chart again")}
	case err != nil:
		return []Finding{bindings.unseen("ClusterRole "+agentRole+" of the agents", err)}
	case !slices.ContainsFunc(role.Rules, writesReports):
		return []Finding{bindings.on(Failed, "ClusterRole "+agentRole+" of the agents does not let them write SyncReports: install the chart again")}
	}
	return []Finding{bindings.on(OK, "the ServiceAccounts of the agents may report")}
}

func writesReports(r rbacv1.PolicyRule) bool {
	has := func(list []string, want string) bool {
		return slices.Contains(list, want) || slices.Contains(list, "*")
	}
	return has(r.APIGroups, v1alpha1.GroupVersion.Group) && has(r.Resources, kube.SyncReport.Plural) && has(r.Verbs, "patch")
}

// grace is added to the duration of a lock, because the clocks may differ.
const grace = time.Minute

// lead checks whether an agent leads.
func (l Checker) lead(ctx context.Context, gs *v1alpha1.GatewaySync) []Finding {
	if len(gs.Status.DiscoveredGateways) == 0 {
		return nil
	}
	target, err := kube.SyncTargets(l.Dynamic, l.Namespace).Get(ctx, gs.Name)
	if err != nil {
		return []Finding{lead.unseen("SyncTarget "+gs.Name, err)}
	}
	r := target.Spec.Lead
	pod, _, _ := strings.Cut(r.Holder, "_") // the rest distinguishes the agents of one pod
	switch {
	case r.Holder == "" || r.Renewed == nil:
		return []Finding{lead.because(Warning, v1alpha1.ReasonWaitingForLead, gs.Name+": there is no lead, so no agent polls git")}
	case r.Renewed.After(l.Now().Add(grace)):
		return []Finding{lead.because(Warning, v1alpha1.ReasonAgentsAway, fmt.Sprintf("%s: %s renewed its lock at %s, which is in the future: check the clock of its node", gs.Name, pod, r.Renewed.UTC().Format(time.RFC3339)))}
	case l.Now().After(r.Renewed.Add(r.ValidFor() + grace)):
		return []Finding{lead.because(Warning, v1alpha1.ReasonAgentsAway, fmt.Sprintf("%s: the lead %s has not renewed its lock since %s", gs.Name, pod, r.Renewed.UTC().Format(time.RFC3339)))}
	}
	return []Finding{lead.on(OK, gs.Name+": "+pod+" is the lead")}
}

// rights checks what the user may do.
func (l Checker) rights(ctx context.Context) []Finding {
	review, err := l.Core.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: l.Namespace, Verb: "patch", Group: v1alpha1.GroupVersion.Group, Resource: kube.GatewaySync.Plural,
		}},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return []Finding{rights.unseen("your rights", err)}
	case !review.Status.Allowed:
		return []Finding{rights.on(Warning, "you may not request refs in namespace "+l.Namespace+": bind the ClusterRole "+setterRole+" to yourself")}
	}
	return []Finding{rights.on(OK, "you may request refs in namespace "+l.Namespace)}
}
