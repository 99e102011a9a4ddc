package check

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// The names that the chart uses.
const (
	receiverName     = "stoker-receiver"
	receiverSecrets  = "stoker-receiver-secrets"
	releaseNamespace = "stoker-system"
)

// account is a ServiceAccount.
type account struct{ namespace, name string }

// receivers are the ServiceAccounts of the receivers in the cluster.
type receivers struct {
	accounts []account
	// hidden is true if the user may not list receivers. Then each account with the name that the chart uses counts as one.
	hidden bool
}

// example returns the account to name in messages.
func (r receivers) example() account {
	if r.hidden || len(r.accounts) == 0 {
		return account{releaseNamespace, receiverName}
	}
	return r.accounts[0]
}

// includes reports whether one of the subjects is a receiver.
func (r receivers) includes(subjects []rbacv1.Subject) bool {
	return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
		return s.Kind == rbacv1.ServiceAccountKind &&
			(r.hidden && s.Name == receiverName || slices.Contains(r.accounts, account{s.Namespace, s.Name}))
	})
}

// receiver checks the Deployments of the receivers, and returns their ServiceAccounts.
func (c Checker) receiver(ctx context.Context) (Finding, receivers) {
	list, err := listAll[appsv1.Deployment](ctx, c.Core.AppsV1().Deployments("").List, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=stoker,app.kubernetes.io/component=receiver",
	})
	if err != nil {
		return topicReceiver.unreadable("the receiver's Deployment", err), receivers{hidden: true}
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

// webhookSecrets checks the Secrets in which GatewaySyncs have the token of their callers: whether the receiver may read them,
// and whether they have a value. If not, the receiver rejects every request with 401 and does not say why.
func (c Checker) webhookSecrets(ctx context.Context, found []*v1alpha1.GatewaySync, r receivers) []Finding {
	found = slices.DeleteFunc(slices.Clone(found), func(gs *v1alpha1.GatewaySync) bool {
		off := gs.Spec.Webhook.Enabled != nil && !*gs.Spec.Webhook.Enabled
		return off || gs.Spec.Webhook.SecretRef == nil
	})
	if len(found) == 0 {
		return nil
	}
	var list []Finding
	if !r.hidden && len(r.accounts) == 0 {
		for _, gs := range found {
			list = append(list, topicReceiver.finding(Warning, gs.Name+": spec.webhook.secretRef is set, but no receiver is installed: set webhookReceiver.enabled, or remove spec.webhook.secretRef"))
		}
		return list
	}
	g, err := c.grants(ctx, r)
	if err != nil {
		list = append(list, topicReceiver.unreadable("the rights to read Secrets in namespace "+c.Namespace, err))
	} else {
		list = append(list, g.report(found)...)
	}
	return append(list, c.secrets(ctx, found)...)
}

// grants are the rights to read Secrets that the RoleBindings of a namespace give to the receivers.
type grants struct {
	receivers
	namespace string
	secrets   map[string]bool                // by name
	wideRole  string                         // a role that grants all Secrets, because it has no resourceNames; "" if there is none
	roles     map[string]*rbacv1.Role        // by name
	bindings  map[string]*rbacv1.RoleBinding // by name
}

// grants collects the rights. It reads one list of each kind, and each ClusterRole that is bound to a receiver.
func (c Checker) grants(ctx context.Context, r receivers) (*grants, error) {
	api := c.Core.RbacV1()
	bound, err := listAll[rbacv1.RoleBinding](ctx, api.RoleBindings(c.Namespace).List, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	roles, err := listAll[rbacv1.Role](ctx, api.Roles(c.Namespace).List, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	g := &grants{receivers: r, namespace: c.Namespace, secrets: map[string]bool{}, roles: map[string]*rbacv1.Role{}, bindings: map[string]*rbacv1.RoleBinding{}}
	for _, role := range roles {
		g.roles[role.Name] = role
	}
	checked := map[string]bool{} // ClusterRoles
	for _, b := range bound {
		g.bindings[b.Name] = b
		switch ref := b.RoleRef; {
		case !r.includes(b.Subjects):
		case ref.Kind != "ClusterRole":
			if role := g.roles[ref.Name]; role != nil {
				g.addRules("Role "+ref.Name, role.Rules)
			}
		case !checked[ref.Name]:
			checked[ref.Name] = true
			role, err := api.ClusterRoles().Get(ctx, ref.Name, metav1.GetOptions{})
			switch {
			case err == nil:
				g.addRules("ClusterRole "+ref.Name, role.Rules)
			case !apierrors.IsNotFound(err):
				return nil, err
			}
		}
	}
	return g, nil
}

// addRules adds the rights that the rules of a role grant.
func (g *grants) addRules(role string, rules []rbacv1.PolicyRule) {
	has := func(list []string, word, all string) bool {
		return slices.Contains(list, word) || slices.Contains(list, all)
	}
	for _, r := range rules {
		if !has(r.Verbs, "get", rbacv1.VerbAll) || !has(r.APIGroups, corev1.GroupName, rbacv1.APIGroupAll) || !has(r.Resources, "secrets", rbacv1.ResourceAll) {
			continue
		}
		if len(r.ResourceNames) == 0 {
			g.wideRole = role
		}
		for _, name := range r.ResourceNames {
			g.secrets[name] = true
		}
	}
}

// report returns a finding for each GatewaySync: whether the receiver may read its Secret.
func (g *grants) report(found []*v1alpha1.GatewaySync) []Finding {
	var list []Finding
	var missing []string
	for _, gs := range found {
		if name := gs.Spec.Webhook.SecretRef.Name; !g.secrets[name] && g.wideRole == "" && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	for _, gs := range found {
		name := gs.Spec.Webhook.SecretRef.Name
		switch {
		case g.secrets[name]:
			list = append(list, topicReceiver.finding(OK, gs.Name+": the receiver may read Secret "+name))
		case g.wideRole != "":
			list = append(list, topicReceiver.finding(Warning, fmt.Sprintf("%s: the receiver may read Secret %s, and every other Secret of namespace %s by %s: list the Secrets in its resourceNames", gs.Name, name, g.namespace, g.wideRole)))
		default:
			state, text := Failed, "the receiver may not read Secret "+name+" and rejects every request"
			if g.hidden {
				state, text = Warning, "a receiver, if there is one, may not read Secret "+name+" and rejects every request"
			}
			list = append(list, topicReceiver.finding(state, fmt.Sprintf("%s: %s: list {namespace: %s, name: %s} in webhookReceiver.secrets, or run: %s", gs.Name, text, g.namespace, name, g.grantCommand(missing))))
		}
	}
	return list
}

// grantCommand returns the command that grants the right to read the named Secrets in addition to the existing rights. If the
// Role of the chart does not exist, the command uses another name: a Helm upgrade cannot adopt a Role that Helm did not create.
func (g *grants) grantCommand(names []string) string {
	to, roleName := g.example(), receiverSecrets
	if g.roles[roleName] == nil {
		roleName += "-" + names[0]
	}
	in := fmt.Sprintf("%s --namespace %s", roleName, g.namespace)
	subject := fmt.Sprintf("--serviceaccount=%s:%s", to.namespace, to.name)
	var steps []string
	role := g.roles[roleName]
	switch missing := missingNames(role, names); {
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
	switch b := g.bindings[roleName]; {
	case b == nil:
		steps = append(steps, "kubectl create rolebinding "+in+" --role="+roleName+" "+subject)
	case b.RoleRef.Kind != "Role" || b.RoleRef.Name != roleName: // the roleRef of a RoleBinding is immutable
		steps = append(steps, fmt.Sprintf("kubectl create rolebinding %s-named --namespace %s --role=%s %s", roleName, g.namespace, roleName, subject))
	case !g.includes(b.Subjects):
		steps = append(steps, "kubectl set subject rolebinding "+in+" "+subject)
	}
	return strings.Join(steps, " && ")
}

// missingNames returns the names that a Role does not list.
func missingNames(role *rbacv1.Role, names []string) []string {
	if role == nil {
		return names
	}
	g := &grants{secrets: map[string]bool{}}
	g.addRules("", role.Rules)
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return g.secrets[name] })
}

// secrets checks whether the Secrets have a value, and returns only problems. It reads each Secret once.
func (c Checker) secrets(ctx context.Context, found []*v1alpha1.GatewaySync) []Finding {
	var list []Finding
	read := map[string]*corev1.Secret{}
	for _, gs := range found {
		ref := gs.Spec.Webhook.SecretRef
		if _, ok := read[ref.Name]; !ok {
			s, err := c.Core.CoreV1().Secrets(c.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				s = &corev1.Secret{}
			case err != nil:
				list = append(list, topicReceiver.unreadable(gs.Name+": Secret "+ref.Name, err))
				s = nil
			}
			read[ref.Name] = s
		}
		if s := read[ref.Name]; s != nil && len(bytes.TrimSpace(s.Data[ref.Key])) == 0 {
			list = append(list, topicReceiver.finding(Failed, gs.Name+": "+secretProblem(s, c.Namespace, ref)))
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
