package check

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
)

// DryRun makes the API server do all that it does for a new gateway pod of the GatewaySync, except create it. So it finds what
// no object shows: whether the API server reaches the injector, and what a quota or Pod Security refuses. like has annotations of a pod; the
// new pod gets those that the injector reads.
func (c Checker) DryRun(ctx context.Context, gatewaySync string, like map[string]string) Finding {
	review, err := c.Core.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: c.Namespace, Verb: "create", Resource: "pods"}},
	}, metav1.CreateOptions{})
	if err != nil || !review.Status.Allowed {
		return topicWebhook.finding(Unknown, "whether the API server reaches the injector needs the right to create pods in namespace "+c.Namespace+", for a dry run")
	}
	made, err := c.Core.CoreV1().Pods(c.Namespace).Create(ctx, gatewayPod(gatewaySync, like), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case apierrors.IsInternalError(err): // in admission, only a failed call of a webhook gives this
		return topicWebhook.finding(Failed, fmt.Sprintf("the API server cannot call the injector, so pods start without agents: %v", err))
	case err != nil:
		text := fmt.Sprintf("the API server would refuse a gateway pod with an agent (dry run): %v", err)
		if gatewaySync != "" {
			text = gatewaySync + ": " + text
		}
		return topicWebhook.finding(Warning, text)
	case !hasAgent(made):
		return topicWebhook.finding(Failed, "the API server does not call the injector for namespace "+c.Namespace+": see namespaceSelector of the MutatingWebhookConfiguration "+injectorName+", and the labels of the namespace")
	}
	return topicWebhook.finding(OK, "the API server calls the injector, which adds an agent to a pod of GatewaySync "+gatewaySync+" (dry run)")
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
