package check

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// The names that the chart uses.
const (
	receiverName    = "stoker-receiver"
	receiverSecrets = "stoker-receiver-secrets"
	releaseSpace    = "stoker-system"
)

// account is a ServiceAccount.
type account struct{ namespace, name string }

// doors are the receivers of the cluster that the user can see.
type doors struct {
	accounts []account
	// hidden means that the user may not list receivers. Then any account with the name of a receiver counts as one.
	hidden bool
}

// guess returns the account to name in messages.
func (d doors) guess() account {
	if d.hidden || len(d.accounts) == 0 {
		return account{releaseSpace, receiverName}
	}
	return d.accounts[0]
}

// among reports whether one of the subjects is a receiver.
func (d doors) among(subjects []rbacv1.Subject) bool {
	return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
		return s.Kind == rbacv1.ServiceAccountKind &&
			(d.hidden && s.Name == receiverName || slices.Contains(d.accounts, account{s.Namespace, s.Name}))
	})
}

// receiver checks the Deployments of receivers.
func (l Checker) receiver(ctx context.Context) (Finding, doors) {
	list, err := l.Core.AppsV1().Deployments("").List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=stoker,app.kubernetes.io/component=receiver", Limit: maxList,
	})
	if err != nil {
		return receiver.unseen("the receiver's Deployment", err), doors{hidden: true}
	}
	if len(list.Items) == 0 {
		return receiver.on(OK, "no receiver is installed: requests over HTTP are not possible, and the lead polls git every spec.polling.interval"), doors{}
	}
	var d doors
	for i := range list.Items {
		name := list.Items[i].Spec.Template.Spec.ServiceAccountName
		if name == "" {
			name = "default"
		}
		d.accounts = append(d.accounts, account{list.Items[i].Namespace, name})
	}
	return rollout(receiver, list.Items, "requests over HTTP fail"), d
}

// asked checks, for each GatewaySync that references a Secret, whether the receiver may read it and whether it exists. The
// receiver itself only answers 401 then.
func (l Checker) asked(ctx context.Context, found []*v1alpha1.GatewaySync, d doors) []Finding {
	found = slices.DeleteFunc(slices.Clone(found), func(gs *v1alpha1.GatewaySync) bool {
		off := gs.Spec.Webhook.Enabled != nil && !*gs.Spec.Webhook.Enabled
		return off || gs.Spec.Webhook.SecretRef == nil
	})
	if len(found) == 0 {
		return nil
	}
	var list []Finding
	if !d.hidden && len(d.accounts) == 0 {
		for _, gs := range found {
			list = append(list, receiver.on(Warning, gs.Name+": spec.webhook.secretRef is set, but no receiver is installed: set webhookReceiver.enabled, or remove spec.webhook.secretRef"))
		}
		return list
	}
	g, err := l.grants(ctx, d)
	if err != nil {
		list = append(list, receiver.unseen("the rights to read Secrets in namespace "+l.Namespace, err))
	} else {
		list = append(list, g.report(found)...)
	}
	return append(list, l.secrets(ctx, found)...)
}

// grants are the rights to read Secrets that the RoleBindings of a namespace give to the receivers.
type grants struct {
	doors
	namespace string
	named     map[string]bool
	// every is a role without resourceNames, which grants all Secrets.
	every    string
	roles    map[string]*rbacv1.Role        // by name
	bindings map[string]*rbacv1.RoleBinding // by name
}

// grants collects the rights. It reads one list of each kind, and each ClusterRole that is bound to a receiver.
func (l Checker) grants(ctx context.Context, d doors) (*grants, error) {
	api := l.Core.RbacV1()
	bound, err := api.RoleBindings(l.Namespace).List(ctx, metav1.ListOptions{Limit: maxList})
	if err != nil {
		return nil, err
	}
	own, err := api.Roles(l.Namespace).List(ctx, metav1.ListOptions{Limit: maxList})
	if err != nil {
		return nil, err
	}
	g := &grants{doors: d, namespace: l.Namespace, named: map[string]bool{}, roles: map[string]*rbacv1.Role{}, bindings: map[string]*rbacv1.RoleBinding{}}
	for i := range own.Items {
		g.roles[own.Items[i].Name] = &own.Items[i]
	}
	wide := map[string]bool{}
	for i := range bound.Items {
		b := &bound.Items[i]
		g.bindings[b.Name] = b
		switch ref := b.RoleRef; {
		case !d.among(b.Subjects):
		case ref.Kind != "ClusterRole":
			if role := g.roles[ref.Name]; role != nil {
				g.add("Role "+ref.Name, role.Rules)
			}
		case !wide[ref.Name]:
			wide[ref.Name] = true
			role, err := api.ClusterRoles().Get(ctx, ref.Name, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, err
			}
			g.add("ClusterRole "+ref.Name, role.Rules)
		}
	}
	return g, nil
}

// add adds the rights of rules.
func (g *grants) add(role string, rules []rbacv1.PolicyRule) {
	has := func(list []string, word, all string) bool {
		return slices.Contains(list, word) || slices.Contains(list, all)
	}
	for _, r := range rules {
		if !has(r.Verbs, "get", rbacv1.VerbAll) || !has(r.APIGroups, corev1.GroupName, rbacv1.APIGroupAll) || !has(r.Resources, "secrets", rbacv1.ResourceAll) {
			continue
		}
		if len(r.ResourceNames) == 0 {
			g.every = role
		}
		for _, name := range r.ResourceNames {
			g.named[name] = true
		}
	}
}

// report returns for each GatewaySync whether the receiver may read its Secret.
func (g *grants) report(found []*v1alpha1.GatewaySync) []Finding {
	var list []Finding
	var without []string
	for _, gs := range found {
		if name := gs.Spec.Webhook.SecretRef.Name; !g.named[name] && g.every == "" && !slices.Contains(without, name) {
			without = append(without, name)
		}
	}
	for _, gs := range found {
		name := gs.Spec.Webhook.SecretRef.Name
		switch {
		case g.named[name]:
			list = append(list, receiver.on(OK, gs.Name+": the receiver may read Secret "+name))
		case g.every != "":
			list = append(list, receiver.on(Warning, fmt.Sprintf("%s: the receiver may read Secret %s, and every other Secret of namespace %s by %s: list the Secrets in its resourceNames", gs.Name, name, g.namespace, g.every)))
		default:
			state, who := Failed, "the receiver may not read Secret "+name+" and rejects every request"
			if g.hidden {
				state, who = Warning, "a receiver, if there is one, may not read Secret "+name+" and rejects every request"
			}
			list = append(list, receiver.on(state, fmt.Sprintf("%s: %s: list {namespace: %s, name: %s} in webhookReceiver.secrets, or run: %s", gs.Name, who, g.namespace, name, g.grantCommand(without))))
		}
	}
	return list
}

// grantCommand returns the command that grants the right to read the named Secrets in addition to the existing rights. If the chart has
// not created its Role, the command uses another name, because a later Helm upgrade cannot adopt objects that Helm did not
// create.
func (g *grants) grantCommand(names []string) string {
	to, own := g.guess(), receiverSecrets
	if g.roles[own] == nil {
		own += "-" + names[0]
	}
	in := fmt.Sprintf("%s --namespace %s", own, g.namespace)
	subject := fmt.Sprintf("--serviceaccount=%s:%s", to.namespace, to.name)
	var steps []string
	role := g.roles[own]
	switch missing := unnamed(role, names); {
	case role == nil:
		steps = append(steps, "kubectl create role "+in+" --verb=get --resource=secrets --resource-name="+strings.Join(names, " --resource-name="))
	case len(missing) > 0:
		rule := fmt.Sprintf(`{"apiGroups":[""],"resources":["secrets"],"resourceNames":["%s"],"verbs":["get"]}`, strings.Join(missing, `","`))
		patch := `[{"op":"add","path":"/rules/-","value":` + rule + `}]`
		if len(role.Rules) == 0 {
			patch = `[{"op":"add","path":"/rules","value":[` + rule + `]}]`
		}
		steps = append(steps, "kubectl patch role "+in+" --type=json --patch='"+patch+"'")
	}
	switch b := g.bindings[own]; {
	case b == nil:
		steps = append(steps, "kubectl create rolebinding "+in+" --role="+own+" "+subject)
	case b.RoleRef.Kind != "Role" || b.RoleRef.Name != own: // the roleRef of a RoleBinding is immutable
		steps = append(steps, fmt.Sprintf("kubectl create rolebinding %s-named --namespace %s --role=%s %s", own, g.namespace, own, subject))
	case !g.among(b.Subjects):
		steps = append(steps, "kubectl set subject rolebinding "+in+" "+subject)
	}
	return strings.Join(steps, " && ")
}

// unnamed returns the names that a Role does not list.
func unnamed(role *rbacv1.Role, names []string) []string {
	if role == nil {
		return names
	}
	of := &grants{named: map[string]bool{}}
	of.add("", role.Rules)
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return of.named[name] })
}

// secrets checks the Secrets themselves, each once. It reports only problems.
func (l Checker) secrets(ctx context.Context, found []*v1alpha1.GatewaySync) []Finding {
	var list []Finding
	read := map[string]*corev1.Secret{}
	for _, gs := range found {
		ref := gs.Spec.Webhook.SecretRef
		if _, ok := read[ref.Name]; !ok {
			s, err := l.Core.CoreV1().Secrets(l.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				s = &corev1.Secret{}
			case err != nil:
				list = append(list, receiver.unseen(gs.Name+": Secret "+ref.Name, err))
				s = nil
			}
			read[ref.Name] = s
		}
		if s := read[ref.Name]; s != nil && len(bytes.TrimSpace(s.Data[ref.Key])) == 0 {
			list = append(list, receiver.on(Failed, gs.Name+": "+useless(s, l.Namespace, ref)))
		}
	}
	return list
}

// useless returns why the receiver rejects every request with this Secret.
func useless(s *corev1.Secret, namespace string, ref *v1alpha1.SecretKeyRef) string {
	if s.Name == "" {
		return fmt.Sprintf("there is no Secret %s, so the receiver rejects every request: run: kubectl create secret generic %s --namespace %s --from-literal=%s=$(openssl rand -hex 32)",
			ref.Name, ref.Name, namespace, ref.Key)
	}
	return fmt.Sprintf(`Secret %s has no value for the key %s, so the receiver rejects every request: run: kubectl patch secret %s --namespace %s --patch="{\"stringData\":{\"%s\":\"$(openssl rand -hex 32)\"}}"`,
		ref.Name, ref.Key, ref.Name, namespace, ref.Key)
}
