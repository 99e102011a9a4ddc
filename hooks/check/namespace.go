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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// namespace checks the gateways of a namespace. calls means that the API server is configured to call the injector.
func (c Checker) namespace(ctx context.Context, r receivers, calls bool) []Finding {
	found, undecodable, err := kube.GatewaySyncs(c.Dynamic, c.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return []Finding{topicSyncs.unreadable("GatewaySyncs of namespace "+c.Namespace, err)}
	}
	var list []Finding
	for _, u := range undecodable {
		list = append(list, topicSyncs.finding(Failed, u.Error()))
	}
	for _, gs := range found {
		list = append(list, c.gatewaySync(ctx, gs))
		list = append(list, proposals(gs)...)
		for _, w := range validation.Warnings(gs) {
			list = append(list, topicSyncs.finding(Warning, gs.Name+": "+w))
		}
	}
	if len(list) == 0 {
		list = append(list, topicSyncs.finding(Warning, "there is no GatewaySync in namespace "+c.Namespace+"; choose another namespace with --namespace"))
	}
	if calls && len(found) > 0 {
		finding, _ := c.DryRun(ctx, found[0].Name, profileOf(found[0]))
		list = append(list, finding)
	}
	list = append(list, c.pods(ctx, found)...)
	for _, gs := range found {
		list = append(list, c.lead(ctx, gs)...)
	}
	list = append(list, c.webhookSecrets(ctx, found, r)...)
	return append(list, c.rights(ctx)...)
}

func (c Checker) gatewaySync(ctx context.Context, gs *v1alpha1.GatewaySync) Finding {
	v, _ := request.ReadWithLock(ctx, c.Clients, gs, "") // the verdict is valid also with an error
	state := Warning
	switch v.Phase {
	case request.Succeeded:
		state = OK
	case request.Failed:
		state = Failed
	}
	return topicSyncs.findingWithReason(state, v.Reason, gs.Name+": "+v.Message)
}

// proposals returns a finding if changes of the gateways do not get back to git. The verdict on the GatewaySync is about the way from git.
func proposals(gs *v1alpha1.GatewaySync) []Finding {
	c := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionBidirectionalReady)
	if c == nil || c.Status == metav1.ConditionTrue {
		return nil
	}
	state, reason := Warning, v1alpha1.Reason(c.Reason)
	if reason.Class() == v1alpha1.ClassStalled {
		state = Failed
	}
	return []Finding{topicSyncs.findingWithReason(state, reason, gs.Name+": changes of gateways are not proposed: "+c.Message)}
}

// pods checks whether each pod that requests an agent has one, and whether the agents have the right to report.
func (c Checker) pods(ctx context.Context, found []*v1alpha1.GatewaySync) []Finding {
	all, err := kube.ListAll[corev1.Pod](ctx, c.Core.CoreV1().Pods(c.Namespace).List, metav1.ListOptions{})
	if err != nil {
		return []Finding{topicPods.unreadable("pods of namespace "+c.Namespace, err)}
	}
	var list []Finding
	var accounts []string
	requesting := 0
	for _, p := range all {
		inject, _ := gatewaypod.Annotation(p.Annotations, v1alpha1.AnnotationInject)
		if inject != "" && inject != "true" && inject != "false" {
			list = append(list, topicPods.findingWithReason(Warning, v1alpha1.ReasonNotRequested, fmt.Sprintf("%s: the annotation %s is %.20q, which requests nothing: use \"true\"", p.Name, v1alpha1.AnnotationInject, inject)))
		}
		if inject != "true" || p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		requesting++
		if problem, ok := podProblem(p, found); ok {
			list = append(list, problem)
		}
		if hasAgent(p) {
			accounts = append(accounts, p.Spec.ServiceAccountName)
		}
	}
	switch {
	case requesting == 0:
		list = append(list, topicPods.findingWithReason(Warning, v1alpha1.ReasonNoGateways, "no pod of namespace "+c.Namespace+" requests an agent: annotate gateways with "+v1alpha1.AnnotationInject+`: "true"`))
	case len(list) == 0:
		list = append(list, topicPods.finding(OK, fmt.Sprintf("all %d pods that request an agent have one", requesting)))
	}
	slices.Sort(accounts)
	return append(list, c.bindings(ctx, slices.Compact(accounts))...)
}

// podProblem returns what is wrong with a pod that requests an agent, or false if nothing is.
func podProblem(p *corev1.Pod, found []*v1alpha1.GatewaySync) (Finding, bool) {
	name, _ := gatewaypod.Annotation(p.Annotations, v1alpha1.AnnotationCRName)
	known := slices.ContainsFunc(found, func(gs *v1alpha1.GatewaySync) bool { return gs.Name == name })
	switch {
	case name != "" && !known:
		return topicPods.findingWithReason(Failed, v1alpha1.ReasonGatewaySyncNotFound, fmt.Sprintf("%s requests GatewaySync %s, which does not exist in this namespace", p.Name, name)), true
	case name == "" && len(found) > 1:
		return topicPods.findingWithReason(Failed, v1alpha1.ReasonGatewaySyncAmbiguous, fmt.Sprintf("%s does not name one of %d GatewaySyncs: annotate it with %s", p.Name, len(found), v1alpha1.AnnotationCRName)), true
	case hasForeignAgent(p):
		return topicPods.findingWithReason(Failed, v1alpha1.ReasonMissingSidecar, p.Name+": its container "+gatewaypod.AgentContainer+" belongs to another program, so the pod has no agent: see 'stoker migrate' and docs/how-to/migration.md"), true
	case !hasAgent(p):
		return topicPods.findingWithReason(Failed, v1alpha1.ReasonMissingSidecar, p.Name+" requests an agent and has none: see the Events of the pod"), true
	}
	if why := agentWaitReason(p); why != "" {
		return topicPods.finding(Failed, p.Name+": its agent does not start: "+why), true
	}
	return Finding{}, false
}

func containers(p *corev1.Pod) []corev1.Container {
	return slices.Concat(p.Spec.InitContainers, p.Spec.Containers)
}

func hasAgent(p *corev1.Pod) bool {
	return slices.ContainsFunc(containers(p), func(c corev1.Container) bool { return c.Name == gatewaypod.AgentContainer })
}

// hasForeignAgent reports whether the container with the name of the agent belongs to another program.
func hasForeignAgent(p *corev1.Pod) bool {
	return slices.ContainsFunc(containers(p), func(c corev1.Container) bool { return gatewaypod.IsForeignAgent(&c) })
}

// agentWaitReason returns why the container of the agent waits, in the words of the kubelet: for example, its image cannot be
// pulled, or it crashes repeatedly. It returns "" if the container does not wait, or waits as in each start.
func agentWaitReason(p *corev1.Pod) string {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		w := c.State.Waiting
		if c.Name != gatewaypod.AgentContainer || w == nil || w.Reason == "" || w.Reason == "PodInitializing" || w.Reason == "ContainerCreating" {
			continue
		}
		return strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
	}
	return ""
}

// maxReviews bounds the ServiceAccounts of agents whose rights are checked, and also the Secrets of callers that a receiver must read. Each costs
// a request or more, one after the other, and all checks together have half a minute.
const maxReviews = 50

// bindings checks whether the ServiceAccounts of the agents have the right to report. It asks the API server, which knows every
// binding and every authorizer.
func (c Checker) bindings(ctx context.Context, accounts []string) []Finding {
	if len(accounts) == 0 {
		return nil
	}
	var list []Finding
	if more := len(accounts) - maxReviews; more > 0 {
		list = append(list, topicBindings.finding(Unknown, fmt.Sprintf("%d of %d ServiceAccounts of agents were not checked", more, len(accounts))))
		accounts = accounts[:maxReviews]
	}
	var denied []string
	writesReport := authorizationv1.ResourceAttributes{Namespace: c.Namespace, Verb: "patch", Group: v1alpha1.GroupVersion.Group, Resource: kube.SyncReport.Plural}
	for _, a := range accounts {
		allowed, err := c.may(ctx, account{c.Namespace, a}, writesReport)
		if err != nil {
			return append(list, topicBindings.unreadable("the rights of ServiceAccount "+a, err))
		}
		if !allowed {
			denied = append(denied, a)
		}
	}
	if len(denied) == 0 {
		return append(list, topicBindings.finding(OK, "the ServiceAccounts of the agents may report"))
	}
	// A binding grants nothing if its role does not exist or does not allow writing reports.
	role, err := c.Core.RbacV1().ClusterRoles().Get(ctx, agentRole, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return append(list, topicBindings.finding(Failed, "ClusterRole "+agentRole+" of the agents does not exist, so they cannot report: upgrade or reinstall the chart"))
	case err == nil && !slices.ContainsFunc(role.Rules, writesReports):
		return append(list, topicBindings.finding(Failed, "ClusterRole "+agentRole+" of the agents does not let them write SyncReports: upgrade or reinstall the chart"))
	case err != nil:
		return append(list, topicBindings.finding(Failed, "ServiceAccount "+strings.Join(denied, ", ")+" has no right to write SyncReports: its agents cannot report"),
			topicBindings.unreadable("ClusterRole "+agentRole, err))
	}
	return append(list, topicBindings.finding(Failed, "no binding grants ClusterRole "+agentRole+" to ServiceAccount "+strings.Join(denied, ", ")+": its agents cannot report"))
}

// may reports whether a ServiceAccount has a right in the namespace, also as a member of its groups.
func (c Checker) may(ctx context.Context, a account, right authorizationv1.ResourceAttributes) (bool, error) {
	review, err := c.Core.AuthorizationV1().LocalSubjectAccessReviews(c.Namespace).Create(ctx, &authorizationv1.LocalSubjectAccessReview{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace},
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               kube.AccountUser(a.namespace, a.name),
			Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + a.namespace, "system:authenticated"},
			ResourceAttributes: &right,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

func writesReports(r rbacv1.PolicyRule) bool {
	has := func(list []string, want string) bool {
		return slices.Contains(list, want) || slices.Contains(list, "*")
	}
	return has(r.APIGroups, v1alpha1.GroupVersion.Group) && has(r.Resources, kube.SyncReport.Plural) && has(r.Verbs, "patch")
}

// lead checks whether a GatewaySync with gateways has a lead, by the rule of the other commands (request.LeadGone).
func (c Checker) lead(ctx context.Context, gs *v1alpha1.GatewaySync) []Finding {
	if len(gs.Status.DiscoveredGateways) == 0 {
		return nil
	}
	target, err := kube.SyncTargets(c.Dynamic, c.Namespace).Get(ctx, gs.Name)
	if apierrors.IsNotFound(err) {
		target, err = &v1alpha1.SyncTarget{}, nil
	}
	if err != nil {
		return []Finding{topicLead.unreadable("SyncTarget "+gs.Name, err)}
	}
	now, lock := c.Now(), target.Spec.Lead
	pod, _, _ := strings.Cut(lock.Holder, "_") // the rest distinguishes the agents of one pod
	switch {
	case lock.Holder == "" || lock.Renewed == nil:
		return []Finding{topicLead.findingWithReason(Warning, v1alpha1.ReasonWaitingForLead, gs.Name+": there is no lead, so no agent polls git")}
	case lock.Renewed.After(now.Add(v1alpha1.ConfirmedFor)):
		return []Finding{topicLead.findingWithReason(Warning, v1alpha1.ReasonAgentsAway, fmt.Sprintf("%s: %s renewed its lock at %s, which is in the future: check the clock of its node", gs.Name, pod, lock.Renewed.UTC().Format(time.RFC3339)))}
	}
	if since, gone := request.LeadGone(gs, target, now); gone {
		missing := "renewed its lock"
		if !gs.Status.Confirmed(now) {
			missing = "confirmed the status"
		}
		message := fmt.Sprintf("%s: the lead %s has not %s", gs.Name, pod, missing)
		if !since.IsZero() {
			message += " since " + since.UTC().Format(time.RFC3339)
		}
		return []Finding{topicLead.findingWithReason(Warning, v1alpha1.ReasonAgentsAway, message)}
	}
	return []Finding{topicLead.finding(OK, gs.Name+": "+pod+" is the lead")}
}

// rights checks whether the user may request refs.
func (c Checker) rights(ctx context.Context) []Finding {
	review, err := c.Core.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: c.Namespace, Verb: "patch", Group: v1alpha1.GroupVersion.Group, Resource: kube.GatewaySync.Plural,
		}},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return []Finding{topicRights.unreadable("your rights", err)}
	case !review.Status.Allowed:
		return []Finding{topicRights.finding(Warning, "you may not request refs in namespace "+c.Namespace+": bind the ClusterRole "+setterRole+" to yourself")}
	}
	return []Finding{topicRights.finding(OK, "you may request refs in namespace "+c.Namespace)}
}
