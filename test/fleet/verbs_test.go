package fleet

import (
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"stoker.io/stoker/test/gitserver"
)

// person is somebody at a terminal who may ask for refs and nothing else.
type person struct {
	p                  *plant
	binary, kubeconfig string
}

func newPerson(p *plant) *person {
	t := p.t
	t.Helper()
	dir := t.TempDir()
	who := &person{p: p, binary: filepath.Join(dir, "stoker"), kubeconfig: filepath.Join(dir, "kubeconfig")}
	out, err := exec.Command("go", "build", "-o", who.binary, "stoker.io/stoker/hooks").CombinedOutput()
	require.NoError(t, err, "%s", out)
	p.cluster.Apply(t, filepath.Join("..", "..", "kustomize", "base", "user-roles.yaml"))
	_, err = p.kube.Core.CoreV1().ServiceAccounts(p.ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "setter"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = p.kube.Core.RbacV1().RoleBindings(p.ns).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "stoker-setter"},
		RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "stoker-setter"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "setter", Namespace: p.ns}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	config := p.cluster.As(t, p.ns, "setter", "")
	kc := clientcmdapi.NewConfig()
	kc.Clusters["c"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData, CertificateAuthority: config.CAFile}
	kc.AuthInfos["c"] = &clientcmdapi.AuthInfo{Token: config.BearerToken}
	kc.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c", Namespace: p.ns}
	kc.CurrentContext = "c"
	require.NoError(t, clientcmd.WriteToFile(*kc, who.kubeconfig))
	return who
}

// command is a command that is not started yet, and all that it will say.
func (w *person) command(args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.Command(w.binary, append(args, "--kubeconfig", w.kubeconfig)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	return cmd, &said
}

// types runs a command, and returns what it says when it ends with this code, and within the bound of everything here.
func (w *person) types(code int, args ...string) string {
	w.p.t.Helper()
	cmd, said := w.command(args...)
	require.NoError(w.p.t, cmd.Start())
	timer := time.AfterFunc(liveness, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer timer.Stop()
	require.Equal(w.p.t, code, codeOf(w.p.t, cmd.Wait()), "stoker %q: %s", args, said)
	return said.String()
}

func codeOf(t *testing.T, err error) int {
	t.Helper()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	require.NoError(t, err)
	return 0
}

// P4, P5: the commands against agents that do the work, with the rights of the role that is shipped.
func TestAPersonAsksForRefsAndWaits(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 2)
	who := newPerson(p)
	for _, g := range p.gw {
		g.start()
	}
	titles := func(want string) {
		t.Helper()
		for _, g := range p.gw {
			assert.Equal(t, want, g.title(), "when the command is done, the gateways are")
		}
	}
	who.types(0, "wait", "site")
	titles("first")
	p.Tag("v1", p.first)
	second := p.commit("second")
	who.types(0, "sync", "site", "--wait")
	titles("second")

	who.types(0, "set-ref", "site", "v1", "--wait", "--by", "argocd", "--id", "job-1")
	titles("first")
	version := p.version()
	who.types(0, "set-ref", "site", "v1", "--wait", "--by", "argocd", "--id", "job-1")
	assert.Equal(t, version, p.version(), "a repeat changes nothing")
	who.types(0, "set-ref", "site", "main", "--wait")
	titles("second")

	p.Commit("broken", gitserver.Files(map[string]string{"projects/line/project.json": `{"title": `}))
	began := time.Now()
	assert.Contains(t, who.types(1, "sync", "site", "--wait"), "ConfigSyntaxError")
	assert.Less(t, time.Since(began), liveness, "it ends at once, not when its time is over")
	assert.Contains(t, who.types(0, "rollback", "site", "--wait"), "until main moves on")
	titles("second")
	assert.Contains(t, who.types(0, "rollback", "site"), "already")
	assert.Equal(t, second, p.status().LastGood.Commit)
	third := p.commit("third")
	p.converges("third", third)

	assert.Contains(t, who.types(1, "set-ref", "site", "nothing", "--wait"), "RefNotFound")
	titles("third")
	who.types(0, "set-ref", "site", "main", "--wait")

	who.types(0, "pause", "site")
	fourth := p.commit("fourth")
	assert.Contains(t, who.types(6, "sync", "site", "--wait"), "paused")
	waiting, said := who.command("wait", "site", "--ref", "main")
	who.types(0, "resume", "site")
	p.converges("fourth", fourth)

	for _, g := range p.gw {
		g.end(syscall.SIGTERM) // nobody is left to do it
	}
	who.types(0, "sync", "site")
	require.NoError(t, waiting.Start())
	who.types(0, "set-ref", "site", "v1", "--by", "kargo")
	require.Equal(t, 4, codeOf(t, waiting.Wait()), "%s", said)
	assert.Contains(t, said.String(), "asked for by kargo")
	assert.Contains(t, who.types(3, "wait", "site", "--timeout", "5s"), "not done")
}

// version is that of the object's annotations and spec: what the lead writes beside them does not count.
func (p *plant) version() map[string]string {
	gs, err := p.syncs().Get(p.t.Context(), "site")
	require.NoError(p.t, err)
	return gs.Annotations
}
