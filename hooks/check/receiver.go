package check

import (
	"bytes"
	"cmp"
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/receiver/secrets"
)

// releaseNamespace is where the documentation installs the chart.
const releaseNamespace = "stoker-system"

type account struct{ namespace, name string }

// receivers are the ServiceAccounts of the receivers in the cluster.
type receivers struct {
	accounts []account
	// hidden is true if the receivers could not be listed. Then accounts has the one of a receiver in releaseNamespace.
	hidden bool
}

// receiver checks the Deployments of the receivers, and returns their ServiceAccounts.
func (c Checker) receiver(ctx context.Context) (Finding, receivers) {
	_, list, err := c.installed(ctx, "receiver")
	if err != nil {
		return topicReceiver.unreadable("the receiver's Deployment", err), receivers{[]account{{releaseNamespace, secrets.Account}}, true}
	}
	if len(list) == 0 {
		return topicReceiver.finding(OK, "no receiver is installed: requests over HTTP are not possible, and the lead polls git every spec.polling.interval"), receivers{}
	}
	var found receivers
	for _, d := range list {
		name := cmp.Or(d.Spec.Template.Spec.ServiceAccountName, "default")
		found.accounts = append(found.accounts, account{d.Namespace, name})
	}
	return deployments(topicReceiver, list, "requests over HTTP fail"), found
}

// webhookSecrets checks the Secrets in which GatewaySyncs and ConfigSyncs have the token of their callers: whether the receiver may read
// them, and whether they have a value. If not, the receiver rejects every request with 401 and does not say why.
func (c Checker) webhookSecrets(ctx context.Context, found []*v1alpha1.GatewaySync, r receivers) (list []Finding) {
	var objects []v1alpha1.Requestable
	add := func(o v1alpha1.Requestable) {
		if w := o.WebhookSpec(); w.SecretRef != nil && (w.Enabled == nil || *w.Enabled) {
			objects = append(objects, o)
		}
	}
	for _, gs := range found {
		add(gs)
	}
	configs, undecodable, err := kube.ConfigSyncs(c.Dynamic, c.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		list = append(list, topicReceiver.unreadable("ConfigSyncs of namespace "+c.Namespace, err))
	}
	for _, u := range undecodable {
		if len(r.accounts) > 0 {
			list = append(list, topicReceiver.finding(Failed, u.Error()+": the receiver rejects its requests"))
		}
	}
	for _, cs := range configs {
		add(cs)
	}
	if len(objects) == 0 {
		return list
	}
	if len(r.accounts) == 0 {
		for _, o := range objects {
			list = append(list, topicReceiver.finding(Warning, label(o)+": spec.webhook.secretRef is set, but no receiver is installed: set webhookReceiver.enabled, or remove spec.webhook.secretRef"))
		}
		return list
	}
	return append(append(list, c.grants(ctx, objects, r)...), c.secrets(ctx, objects)...)
}

// label returns the name of an object in findings.
func label(o v1alpha1.Requestable) string {
	if _, ok := o.(*v1alpha1.ConfigSync); ok {
		return v1alpha1.KindConfigSync + " " + o.GetName()
	}
	return o.GetName()
}

// grants checks whether a receiver may read the Secret of each object. It asks the API server, which knows every binding and every authorizer.
func (c Checker) grants(ctx context.Context, objects []v1alpha1.Requestable, r receivers) (list []Finding) {
	allowed := map[string]bool{} // by the name of a Secret; "" is all Secrets
	var err error
	may := func(name string) bool {
		if _, known := allowed[name]; !known && err == nil {
			right := authorizationv1.ResourceAttributes{Namespace: c.Namespace, Verb: "get", Resource: "secrets", Name: name}
			for _, a := range r.accounts {
				if allowed[name], err = c.may(ctx, a, right); allowed[name] || err != nil {
					break
				}
			}
		}
		return allowed[name]
	}
	for i, o := range objects {
		name := o.WebhookSpec().SecretRef.Name
		wide := may("")
		readable := wide || may(name)
		switch {
		case err != nil:
			return append(list, topicReceiver.unreadable("the rights to read Secrets in namespace "+c.Namespace, err))
		case wide:
			list = append(list, topicReceiver.finding(Warning, fmt.Sprintf("%s: the receiver may read Secret %s, and every other Secret of namespace %s: list the Secrets in the resourceNames of its role", label(o), name, c.Namespace)))
		case readable:
			list = append(list, topicReceiver.finding(OK, label(o)+": the receiver may read Secret "+name))
		default:
			state, text := Failed, "the receiver may not read Secret "+name+" and rejects every request"
			if r.hidden {
				state, text = Unknown, "a receiver in namespace "+releaseNamespace+", if there is one, may not read Secret "+name
			}
			list = append(list, topicReceiver.finding(state, fmt.Sprintf("%s: %s: list {namespace: %s, name: %s} in webhookReceiver.secrets, or run: %s", label(o), text, c.Namespace, name,
				secrets.GrantCommand(secrets.Ref{Namespace: c.Namespace, Name: name}, r.accounts[0].namespace, r.accounts[0].name))))
		}
		if more := len(objects) - i - 1; more > 0 && len(allowed) > maxReviews {
			return append(list, topicReceiver.finding(Unknown, fmt.Sprintf("the rights to read the Secrets of %d more objects were not checked", more)))
		}
	}
	return list
}

// secrets checks whether the Secrets have a value, and returns only problems. It reads each Secret once.
func (c Checker) secrets(ctx context.Context, objects []v1alpha1.Requestable) []Finding {
	var list []Finding
	read := map[string]*corev1.Secret{}
	for _, o := range objects {
		ref := o.WebhookSpec().SecretRef
		if _, ok := read[ref.Name]; !ok {
			s, err := c.Core.CoreV1().Secrets(c.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				s = &corev1.Secret{}
			case err != nil:
				list = append(list, topicReceiver.unreadable(label(o)+": Secret "+ref.Name, err))
				s = nil
			}
			read[ref.Name] = s
		}
		if s := read[ref.Name]; s != nil && len(bytes.TrimSpace(s.Data[ref.Key])) == 0 {
			list = append(list, topicReceiver.finding(Failed, label(o)+": "+secretProblem(s, c.Namespace, ref)))
		}
	}
	return list
}

// secretProblem returns why the receiver rejects every request with this Secret, and how to fix it. A Secret without a name does
// not exist.
func secretProblem(s *corev1.Secret, namespace string, ref *v1alpha1.SecretKeyRef) string {
	if s.Name == "" {
		return fmt.Sprintf("there is no Secret %s, so the receiver rejects every request: run: kubectl create secret generic %s --namespace %s --from-literal=%s=$(openssl rand -hex 32)",
			ref.Name, ref.Name, namespace, ref.Key)
	}
	return fmt.Sprintf(`Secret %s has no value for the key %s, so the receiver rejects every request: run: kubectl patch secret %s --namespace %s --patch="{\"stringData\":{\"%s\":\"$(openssl rand -hex 32)\"}}"`,
		ref.Name, ref.Key, ref.Name, namespace, ref.Key)
}
