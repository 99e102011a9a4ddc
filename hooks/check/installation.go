package check

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/migrate"
	"stoker.io/stoker/internal/kube"
)

// The names that the chart uses.
const (
	injectorName = "stoker-injector"
	agentRole    = "stoker-agent"
	setterRole   = "stoker-setter"
)

func lower(s string) string { return strings.ToLower(s) }

// kinds checks whether the API server serves the kinds of stoker.io.
func (l Checker) kinds() Finding {
	served, err := l.Core.Discovery().ServerResourcesForGroupVersion(v1alpha1.GroupVersion.String())
	if apierrors.IsNotFound(err) {
		return kinds.on(Failed, "the cluster does not serve the kinds of stoker.io: install the chart, or apply the files of charts/stoker/files/crds")
	}
	if err != nil {
		return kinds.unseen("the list of API resources", err)
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
		return kinds.on(Failed, "not served: "+strings.Join(missing, ", ")+"; apply the files of charts/stoker/files/crds")
	}
	return kinds.on(OK, "GatewaySync, SyncTarget, SyncReport and ConfigSync are served")
}

// leftovers reports what the earlier product that also used the API group stoker.io left in the cluster (see package
// migrate). Pods are left out: the check pods reports them.
func (l Checker) leftovers(ctx context.Context) []Finding {
	plan, err := migrate.Finder{Clients: l.Clients, Namespace: l.Namespace, Release: "stoker", ReleaseNamespace: "stoker-system"}.Plan(ctx)
	var list []Finding
	for _, a := range plan {
		if !a.Pod {
			list = append(list, leftovers.on(Warning, a.Object+": "+a.Why+"; see 'stoker migrate'"))
		}
	}
	if err != nil {
		return append(list, leftovers.unseen("objects of an earlier product", err))
	}
	if len(list) == 0 {
		return []Finding{leftovers.on(OK, "there are no objects of an earlier product")}
	}
	return list
}

// roles checks whether the ClusterRoles of agents and setters exist.
func (l Checker) roles(ctx context.Context) []Finding {
	var list []Finding
	for _, role := range []struct{ name, without string }{
		{agentRole, "agents can neither report nor lead"}, {setterRole, "you cannot grant the right to request refs without the right to edit the spec"},
	} {
		name := role.name
		_, err := l.Core.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			list = append(list, roles.on(Failed, "there is no ClusterRole "+name+": "+role.without+"; install the chart again"))
		case err != nil:
			list = append(list, roles.unseen("ClusterRole "+name, err))
		}
	}
	if len(list) == 0 {
		return []Finding{roles.on(OK, "ClusterRoles "+agentRole+" and "+setterRole+" exist")}
	}
	return list
}

// policies checks whether the admission policies that narrow the roles of agents and setters exist and are bound.
func (l Checker) policies(ctx context.Context) []Finding {
	var list []Finding
	api := l.Core.AdmissionregistrationV1()
	for _, name := range []string{"stoker-gatewaysyncs", "stoker-approvals", "stoker-syncreports", "stoker-synctargets"} {
		_, err := api.ValidatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			_, err = api.ValidatingAdmissionPolicyBindings().Get(ctx, name, metav1.GetOptions{})
		}
		switch {
		case apierrors.IsNotFound(err):
			list = append(list, policies.on(Warning, "ValidatingAdmissionPolicy "+name+" or its binding is missing, so rights are wider than necessary: set admissionPolicies.enabled"))
		case err != nil:
			list = append(list, policies.unseen("ValidatingAdmissionPolicy "+name, err))
		}
	}
	if len(list) == 0 {
		return []Finding{policies.on(OK, "the admission policies exist and are bound")}
	}
	return list
}

// webhook checks that each entry of the injector's webhook configuration names a Service and has a CA certificate that
// is valid now.
func (l Checker) webhook(ctx context.Context) []Finding {
	found, err := l.Core.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, injectorName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return []Finding{webhook.on(Failed, "there is no MutatingWebhookConfiguration "+injectorName+": pods start without agents; install the chart again")}
	}
	if err != nil {
		return []Finding{webhook.unseen("MutatingWebhookConfiguration "+injectorName, err)}
	}
	if len(found.Webhooks) == 0 {
		return []Finding{webhook.on(Failed, "MutatingWebhookConfiguration "+injectorName+" has no entry; install the chart again")}
	}
	var list []Finding
	for i := range found.Webhooks {
		if problem := l.entry(&found.Webhooks[i]); problem != "" {
			list = append(list, webhook.on(Failed, found.Webhooks[i].Name+": "+problem))
		}
	}
	if len(list) == 0 {
		return []Finding{webhook.on(OK, fmt.Sprintf("%d entries of the webhook trust a valid certificate", len(found.Webhooks)))}
	}
	return list
}

// entry returns what is wrong with one entry of the configuration.
func (l Checker) entry(w *admissionregv1.MutatingWebhook) string {
	if w.ClientConfig.Service == nil {
		return "it names no Service"
	}
	valid := 0
	for rest := w.ClientConfig.CABundle; len(rest) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && l.Now().Before(c.NotAfter) && l.Now().After(c.NotBefore) {
			valid++
		}
	}
	if valid == 0 {
		return "caBundle has no valid certificate: see the log of its writer, the injector or cert-manager"
	}
	return ""
}

// injector checks the Deployment of the injector.
func (l Checker) injector(ctx context.Context) Finding {
	list, err := l.Core.AppsV1().Deployments("").List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=stoker,app.kubernetes.io/component=injector", Limit: maxList,
	})
	if err != nil {
		return injector.unseen("the injector's Deployment", err)
	}
	if len(list.Items) == 0 {
		return injector.on(Failed, "there is no Deployment of the injector: pods start without agents; install the chart again")
	}
	return rollout(injector, list.Items, "pods start without agents")
}

// rollout reports whether the pods of Deployments are ready. without is the consequence if none is.
func rollout(t Topic, list []appsv1.Deployment, without string) Finding {
	for i := range list {
		d := &list[i]
		if d.Status.ReadyReplicas == 0 {
			return t.on(Failed, fmt.Sprintf("Deployment %s/%s has no ready pod: %s; see its pods and their logs", d.Namespace, d.Name, without))
		}
		if want := d.Spec.Replicas; want != nil && d.Status.ReadyReplicas < *want {
			return t.on(Warning, fmt.Sprintf("Deployment %s/%s: %d of %d pods are ready", d.Namespace, d.Name, d.Status.ReadyReplicas, *want))
		}
	}
	d := &list[0]
	return t.on(OK, fmt.Sprintf("Deployment %s/%s: %d pods are ready", d.Namespace, d.Name, d.Status.ReadyReplicas))
}
