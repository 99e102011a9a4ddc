package check

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/hooks/migrate"
	"stoker.io/stoker/internal/kube"
)

// The names that the chart uses.
const (
	injectorName = "stoker-injector"
	agentRole    = "stoker-agent"
	setterRole   = "stoker-setter"
)

// kinds checks whether the API server serves the kinds of stoker.io.
func (c Checker) kinds() Finding {
	served, err := c.Core.Discovery().ServerResourcesForGroupVersion(v1alpha1.GroupVersion.String())
	if apierrors.IsNotFound(err) {
		return topicKinds.finding(Failed, "the cluster does not serve the kinds of stoker.io: install the chart, or apply the files of charts/stoker/files/crds")
	}
	if err != nil {
		return topicKinds.unreadable("the list of API resources", err)
	}
	have := map[string]bool{}
	for _, r := range served.APIResources {
		have[r.Name] = true
	}
	var missing []string
	for _, k := range []kube.Kind{kube.GatewaySync, kube.SyncTarget, kube.SyncReport, kube.ConfigSync} {
		if !have[k.Plural] {
			missing = append(missing, k.Name)
		}
	}
	if len(missing) > 0 {
		return topicKinds.finding(Failed, "not served: "+strings.Join(missing, ", ")+"; apply the files of charts/stoker/files/crds")
	}
	return topicKinds.finding(OK, "GatewaySync, SyncTarget, SyncReport and ConfigSync are served")
}

// leftovers returns what an earlier product with the same API group left in the cluster (see package migrate), except for pods,
// which the check pods reports.
func (c Checker) leftovers(ctx context.Context) []Finding {
	actions, err := migrate.Finder{Clients: c.Clients, Namespace: c.Namespace, Release: "stoker", ReleaseNamespace: "stoker-system"}.Objects(ctx)
	var list []Finding
	for _, a := range actions {
		list = append(list, topicLeftovers.finding(Warning, a.Object+": "+a.Why+"; see 'stoker migrate'"))
	}
	if err != nil {
		return append(list, topicLeftovers.unreadable("objects of an earlier product", err))
	}
	if len(list) == 0 {
		return []Finding{topicLeftovers.finding(OK, "there are no objects of an earlier product")}
	}
	return list
}

// roles checks whether the ClusterRoles of agents and setters exist.
func (c Checker) roles(ctx context.Context) []Finding {
	var list []Finding
	for _, role := range []struct{ name, without string }{
		{agentRole, "agents can neither report nor lead"}, {setterRole, "you cannot grant the right to request refs without the right to edit the spec"},
	} {
		name := role.name
		_, err := c.Core.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			list = append(list, topicRoles.finding(Failed, "there is no ClusterRole "+name+": "+role.without+"; upgrade or reinstall the chart"))
		case err != nil:
			list = append(list, topicRoles.unreadable("ClusterRole "+name, err))
		}
	}
	if len(list) == 0 {
		return []Finding{topicRoles.finding(OK, "ClusterRoles "+agentRole+" and "+setterRole+" exist")}
	}
	return list
}

// policies checks whether the admission policies exist and are bound. They narrow the roles of agents and setters. It omits
// stoker-secrets, which exists only if the value admissionPolicies.mountableSecretLabel is set.
func (c Checker) policies(ctx context.Context) []Finding {
	var list []Finding
	api := c.Core.AdmissionregistrationV1()
	for _, name := range []string{"stoker-gatewaysyncs", "stoker-approvals", "stoker-syncreports", "stoker-synctargets"} {
		_, err := api.ValidatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			_, err = api.ValidatingAdmissionPolicyBindings().Get(ctx, name, metav1.GetOptions{})
		}
		switch {
		case apierrors.IsNotFound(err):
			list = append(list, topicPolicies.finding(Warning, "ValidatingAdmissionPolicy "+name+" or its binding is missing, so rights are wider than necessary: set admissionPolicies.enabled"))
		case err != nil:
			list = append(list, topicPolicies.unreadable("ValidatingAdmissionPolicy "+name, err))
		}
	}
	if len(list) == 0 {
		return []Finding{topicPolicies.finding(OK, "the admission policies exist and are bound")}
	}
	return list
}

// webhook checks whether each entry of the injector's webhook configuration names a Service and has a valid CA certificate.
func (c Checker) webhook(ctx context.Context) []Finding {
	found, err := c.Core.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, injectorName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return []Finding{topicWebhook.finding(Failed, "there is no MutatingWebhookConfiguration "+injectorName+": pods start without agents; upgrade or reinstall the chart")}
	}
	if err != nil {
		return []Finding{topicWebhook.unreadable("MutatingWebhookConfiguration "+injectorName, err)}
	}
	if len(found.Webhooks) == 0 {
		return []Finding{topicWebhook.finding(Failed, "MutatingWebhookConfiguration "+injectorName+" has no entry; upgrade or reinstall the chart")}
	}
	var list []Finding
	for i := range found.Webhooks {
		if problem := c.webhookProblem(&found.Webhooks[i]); problem != "" {
			list = append(list, topicWebhook.finding(Failed, found.Webhooks[i].Name+": "+problem))
		}
	}
	if len(list) == 0 {
		return []Finding{topicWebhook.finding(OK, fmt.Sprintf("the webhook configuration has %d entries, each with a valid CA certificate", len(found.Webhooks)))}
	}
	return list
}

// webhookProblem returns what is wrong with one entry of the configuration, or "".
func (c Checker) webhookProblem(w *admissionregv1.MutatingWebhook) string {
	if w.ClientConfig.Service == nil {
		return "it names no Service"
	}
	valid := false
	for rest := w.ClientConfig.CABundle; len(rest) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && c.Now().Before(cert.NotAfter) && c.Now().After(cert.NotBefore) {
			valid = true
		}
	}
	if !valid {
		return "caBundle has no valid certificate: see the log of its writer, the Job stoker-certificate or cert-manager"
	}
	return ""
}

func (c Checker) injector(ctx context.Context) Finding {
	namespace, list, err := c.installed(ctx, "injector")
	if err != nil {
		return topicInjector.unreadable("the injector's Deployment", err)
	}
	if len(list) == 0 {
		return topicInjector.finding(Failed, "namespace "+namespace+" has no Deployment of the injector: pods start without agents; upgrade or reinstall the chart")
	}
	return deployments(topicInjector, list, "pods start without agents")
}

// installed returns the Deployments of a part of Stoker in the namespace where it is installed, and that namespace. If no webhook configuration
// names the namespace, it is releaseNamespace.
func (c Checker) installed(ctx context.Context, component string) (namespace string, list []*appsv1.Deployment, err error) {
	namespace, err = systemNamespace(ctx, c.Clients)
	if apierrors.IsNotFound(err) {
		namespace, err = releaseNamespace, nil
	}
	if err == nil {
		list, err = kube.ListAll[appsv1.Deployment](ctx, c.Core.AppsV1().Deployments(namespace).List, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/name=stoker,app.kubernetes.io/component=" + component,
		})
	}
	return namespace, list, err
}

// refused returns why the API server refuses the pods of a Deployment, such as a quota or Pod Security, or otherwise the text other.
func refused(d *appsv1.Deployment, other string) string {
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			return "; the API server refuses its pods: " + c.Message
		}
	}
	return other
}

// deployments checks whether the pods of Deployments are ready. consequence says what happens if a Deployment has no ready pod.
// If all are ready, the finding names only the first: there is usually one.
func deployments(t Topic, list []*appsv1.Deployment, consequence string) Finding {
	for _, d := range list {
		if d.Status.ReadyReplicas == 0 {
			return t.finding(Failed, fmt.Sprintf("Deployment %s/%s has no ready pod: %s%s", d.Namespace, d.Name, consequence, refused(d, "; see its pods and their logs")))
		}
		if want := d.Spec.Replicas; want != nil && d.Status.ReadyReplicas < *want {
			return t.finding(Warning, fmt.Sprintf("Deployment %s/%s: %d of %d pods are ready%s", d.Namespace, d.Name, d.Status.ReadyReplicas, *want, refused(d, "")))
		}
	}
	d := list[0]
	return t.finding(OK, fmt.Sprintf("Deployment %s/%s: %d pods are ready", d.Namespace, d.Name, d.Status.ReadyReplicas))
}

// DryRun makes the API server do all that it does for a new gateway pod of the GatewaySync, except create it. So it finds what
// no object shows: whether the API server reaches the injector, and what a quota or Pod Security refuses. like has annotations of a pod; the
// new pod gets those that the injector reads. An error says that the API server did not answer, which the finding says, too.
func (c Checker) DryRun(ctx context.Context, gatewaySync string, like map[string]string) (Finding, error) {
	unanswered := func(err error) (Finding, error) {
		return topicWebhook.finding(Unknown, "whether the API server reaches the injector is not known, because it does not answer: "+err.Error()), err
	}
	review, err := c.Core.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: c.Namespace, Verb: "create", Resource: "pods"}},
	}, metav1.CreateOptions{})
	if kube.Transient(err) {
		return unanswered(err)
	}
	if err != nil {
		return topicWebhook.finding(Unknown, fmt.Sprintf("whether you may create pods is not known: %v", err)), nil
	}
	if !review.Status.Allowed {
		return topicWebhook.finding(Unknown, "whether the API server reaches the injector needs the right to create pods in namespace "+c.Namespace+", for a dry run"), nil
	}
	made, err := c.Core.CoreV1().Pods(c.Namespace).Create(ctx, gatewayPod(gatewaySync, like), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case apierrors.IsInternalError(err): // in admission, only a failed call of a webhook gives this
		return topicWebhook.finding(Failed, fmt.Sprintf("the API server cannot call the injector, so pods start without agents: %v", err)), nil
	case kube.Transient(err):
		return unanswered(err)
	case err != nil:
		text := fmt.Sprintf("the API server would refuse a gateway pod with an agent (dry run): %v", err)
		if gatewaySync != "" {
			text = gatewaySync + ": " + text
		}
		return topicWebhook.finding(Warning, text), nil
	case !hasAgent(made):
		return topicWebhook.finding(Failed, "the API server does not call the injector for namespace "+c.Namespace+": see namespaceSelector of the MutatingWebhookConfiguration "+injectorName+", and the labels of the namespace"), nil
	}
	return topicWebhook.finding(OK, "the API server calls the injector, which adds an agent to a pod of GatewaySync "+gatewaySync+" (dry run)"), nil
}

// gatewayPod is a minimal gateway that Pod Security "restricted" admits. It requires its agent, so that a failed call of the injector is an error.
func gatewayPod(gatewaySync string, like map[string]string) *corev1.Pod {
	annotations := map[string]string{}
	for name, value := range like {
		if strings.HasPrefix(name, gatewaypod.Prefix) || strings.HasPrefix(name, gatewaypod.OlderPrefix) {
			annotations[name] = value
		}
	}
	delete(annotations, v1alpha1.AnnotationInjected)
	maps.Copy(annotations, map[string]string{v1alpha1.AnnotationInject: "true", v1alpha1.AnnotationRequire: "true", v1alpha1.AnnotationDataVolume: "data"})
	if gatewaySync != "" {
		annotations[v1alpha1.AnnotationCRName] = gatewaySync
	}
	limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "stoker-check", Annotations: annotations},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: new(bool),
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(65532)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: "gateway", Image: "stoker-check",
				Resources: corev1.ResourceRequirements{Limits: limits},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(bool),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
}

// profileOf returns the annotation that a pod of a GatewaySync without a default profile needs.
func profileOf(gs *v1alpha1.GatewaySync) map[string]string {
	profiles := gs.Spec.Sync.Profiles
	if _, ok := profiles[v1alpha1.DefaultProfile]; ok || len(profiles) == 0 {
		return nil
	}
	return map[string]string{v1alpha1.AnnotationProfile: slices.Sorted(maps.Keys(profiles))[0]}
}
