package admission

import (
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// Names of the webhook configuration and its two entries. There are two because an entry determines what happens while no
// injector answers.
const (
	ConfigurationName = "stoker-injector"
	EntryPods         = "pods.stoker.io"
	EntryRequire      = "require.pods.stoker.io"
)

// LabelInjection on a namespace or a pod enables or disables injection.
const LabelInjection = "stoker.io/injection"

// Values of LabelInjection.
const (
	InjectionEnabled  = "enabled"
	InjectionDisabled = "disabled"
)

// Installation holds what differs between clusters in the webhook configuration.
type Installation struct {
	// Namespace is the injector's own.
	Namespace string
	// Watch lists the namespaces to serve; empty means all.
	Watch []string
	// RequireLabel admits only namespaces with the label LabelInjection.
	RequireLabel bool
	// TimeoutSeconds is how long the API server waits.
	TimeoutSeconds int32
}

// asks returns a CEL expression that is true if the annotation stoker.io/suffix of the pod, or its older name, is "true".
// Indexing a map without the key would be an error for every other pod of the cluster.
func asks(suffix string) string {
	return "object.metadata.?annotations['stoker.io/" + suffix + "'].orValue(object.metadata.?annotations['ignition-sync.io/" + suffix + "'].orValue('')) == 'true'"
}

// Webhooks returns the entries of the MutatingWebhookConfiguration. The chart renders the same, and a test compares both.
func Webhooks(in Installation) []admissionregv1.MutatingWebhook {
	expr := func(key string, op metav1.LabelSelectorOperator, values ...string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: values}
	}
	namespaces := []metav1.LabelSelectorRequirement{
		// The pods of the control plane and of the injector must never depend on the injector.
		expr("kubernetes.io/metadata.name", metav1.LabelSelectorOpNotIn, metav1.NamespaceSystem, in.Namespace),
	}
	if len(in.Watch) > 0 {
		namespaces = append(namespaces, expr("kubernetes.io/metadata.name", metav1.LabelSelectorOpIn, in.Watch...))
	}
	if in.RequireLabel {
		namespaces = append(namespaces, expr(LabelInjection, metav1.LabelSelectorOpIn, InjectionEnabled))
	} else {
		namespaces = append(namespaces, expr(LabelInjection, metav1.LabelSelectorOpNotIn, InjectionDisabled))
	}
	entry := func(name string, policy admissionregv1.FailurePolicyType, condition, expression string) admissionregv1.MutatingWebhook {
		return admissionregv1.MutatingWebhook{
			Name:                    name,
			AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregv1.WebhookClientConfig{Service: &admissionregv1.ServiceReference{
				Name: "stoker-injector", Namespace: in.Namespace, Path: new(Path), Port: new(int32(443)),
			}},
			FailurePolicy:      new(policy),
			MatchPolicy:        new(admissionregv1.Equivalent),
			ReinvocationPolicy: new(admissionregv1.IfNeededReinvocationPolicy),
			SideEffects:        new(admissionregv1.SideEffectClassNone),
			TimeoutSeconds:     new(in.TimeoutSeconds),
			Rules: []admissionregv1.RuleWithOperations{{
				Operations: []admissionregv1.OperationType{admissionregv1.Create},
				Rule:       admissionregv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}, Scope: new(admissionregv1.NamespacedScope)},
			}},
			NamespaceSelector: &metav1.LabelSelector{MatchExpressions: namespaces},
			ObjectSelector:    &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{expr(LabelInjection, metav1.LabelSelectorOpNotIn, InjectionDisabled)}},
			MatchConditions: []admissionregv1.MatchCondition{
				{Name: "asks-for-an-agent", Expression: asks(suffix(v1alpha1.AnnotationInject))},
				{Name: condition, Expression: expression},
			},
		}
	}
	require := asks(suffix(v1alpha1.AnnotationRequire))
	return []admissionregv1.MutatingWebhook{
		entry(EntryPods, admissionregv1.Ignore, "does-not-require-it", "!("+require+")"),
		entry(EntryRequire, admissionregv1.Fail, "requires-it", require),
	}
}

func suffix(annotation string) string { return annotation[len(v1alpha1.GroupVersion.Group)+1:] }
