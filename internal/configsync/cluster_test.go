package configsync_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/gitserver"
)

// edge is another cluster. It has a namespace with the name of a world's, and an account that may change ConfigMaps there.
type edge struct {
	*kubetest.Cluster
	core  kubernetes.Interface
	token string
}

func newEdge(t *testing.T, w *world) *edge {
	e := &edge{Cluster: kubetest.Control(t, kubetest.Private(), kubetest.Controllers())}
	e.core = e.Client(t)
	e.NamespaceNamed(t, w.namespace)
	e.ApplyYAML(t, w.namespace, `{apiVersion: v1, kind: ServiceAccount, metadata: {name: deployer}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: deployer}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get, create, patch, delete]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: deployer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: deployer}
subjects: [{kind: ServiceAccount, name: deployer}]
`)
	e.WaitAllowed(t, w.namespace, "deployer", authorizationv1.ResourceAttributes{Namespace: w.namespace, Resource: "configmaps", Verb: "patch"})
	request, err := e.core.CoreV1().ServiceAccounts(w.namespace).CreateToken(t.Context(), "deployer", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	e.token = request.Status.Token
	return e
}

// kubeconfig returns a kubeconfig for the account, with another server if that is not "".
func (e *edge) kubeconfig(t *testing.T, server string) string {
	config := e.RESTConfig()
	require.NoError(t, rest.LoadTLSFiles(config))
	if server == "" {
		server = config.Host
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: edge
contexts: [{name: edge, context: {cluster: edge, user: deployer}}]
clusters: [{name: edge, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: deployer, user: {token: %s}}]
`, server, base64.StdEncoding.EncodeToString(config.CAData), e.token)
}

// secret writes the Secret edge.
func (w *world) secret(t *testing.T, key, text string) {
	quoted, err := json.Marshal(text)
	require.NoError(t, err)
	w.ApplyYAML(t, w.namespace, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: edge}, stringData: {%s: %s}}", key, quoted))
}

// configMap returns a ConfigMap of another cluster, or nil if there is none.
func (e *edge) configMap(t *testing.T, namespace, name string) *corev1.ConfigMap {
	m, err := e.core.CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	return m
}

// Objects are applied and pruned in the cluster of the kubeconfig with the rights of its user; the cluster of the ConfigSync has only the
// status.
func TestOtherCluster(t *testing.T) {
	w := newWorld(t)
	e := newEdge(t, w)
	w.ApplyYAML(t, w.namespace, "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {a: mine}}")
	w.secret(t, "value", e.kubeconfig(t, ""))
	w.commit("k8s/a.yaml", configMap("a", "1"), "k8s/b.yaml", configMap("b", "1"))
	w.create("kubeConfig: {secretRef: {name: edge}}")
	assert.Contains(t, w.must().Plan.String(), "2 to create")
	assert.Equal(t, "1", e.configMap(t, w.namespace, "a").Data["a"])
	assert.Equal(t, w.namespace+"/plant@kubeConfig", e.configMap(t, w.namespace, "a").Annotations[v1alpha1.AnnotationConfigSync])
	assert.Equal(t, map[string]string{"a": "mine"}, w.data("a"), "the cluster of the ConfigSync is not the one of the objects")
	assert.Nil(t, w.data("b"))
	assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionReady).Status)
	assert.Contains(t, w.must().Plan.String(), "2 unchanged")

	w.commit("k8s/b.yaml", "")
	w.must()
	assert.Nil(t, e.configMap(t, w.namespace, "b"), "what git no longer has must be deleted there")

	t.Run("rights", func(t *testing.T) {
		w.commit("k8s/s.yaml", "{apiVersion: v1, kind: Secret, metadata: {name: s}}")
		_, err := w.apply()
		assert.True(t, failure.Is(err, v1alpha1.ReasonApplyForbidden), "the caller's own rights do not count: %v", err)
		w.commit("k8s/s.yaml", "")
	})
	t.Run("object of a ConfigSync of that cluster", func(t *testing.T) {
		e.ApplyYAML(t, w.namespace, "{apiVersion: v1, kind: ConfigMap, metadata: {name: c, annotations: {stoker.io/configsync: "+w.namespace+"/plant}}, data: {a: theirs}}")
		w.commit("k8s/c.yaml", configMap("c", "1"))
		w.fails(v1alpha1.ReasonNotOwned)
		assert.Equal(t, "theirs", e.configMap(t, w.namespace, "c").Data["a"])
		w.commit("k8s/c.yaml", "")
	})
	t.Run("object that a ConfigSync of another cluster applies", func(t *testing.T) {
		w.ApplyYAML(t, w.namespace, "{apiVersion: v1, kind: ConfigMap, metadata: {name: d, annotations: {stoker.io/configsync: "+w.namespace+"/plant@kubeConfig}}, data: {a: theirs}}")
		w.commit("own/d.yaml", configMap("d", "1"))
		w.createNamed("own", "source: {git: {path: own}}\napply: {adoptPolicy: always}")
		_, err := w.applyNamed("own")
		assert.True(t, failure.Is(err, v1alpha1.ReasonNotOwned), "%v", err)
		assert.Equal(t, "theirs", w.data("d")["a"])
	})
	t.Run("another key", func(*testing.T) {
		w.create("kubeConfig: {secretRef: {name: edge, key: other}}")
		w.fails(v1alpha1.ReasonSourceMissing, `spec.kubeConfig: Secret edge has no key "other"`)
		w.create("kubeConfig: {secretRef: {name: edge}}")
	})
	t.Run("deleted when the token is not accepted", func(t *testing.T) {
		w.secret(t, "value", strings.Replace(e.kubeconfig(t, ""), e.token, "expired", 1))
		left, err := w.engine(w.RESTConfig()).Remove(t.Context(), w.get())
		assert.True(t, failure.Is(err, v1alpha1.ReasonPruneFailed), "%v", err)
		assert.ErrorContains(t, err, "does not accept the credentials")
		assert.True(t, left.Forbidden, "the deletion ends after its deadline, as without rights")
		w.secret(t, "value", e.kubeconfig(t, ""))
	})
	t.Run("deleted when the Secret is gone", func(t *testing.T) {
		require.NoError(t, w.Client(t).CoreV1().Secrets(w.namespace).Delete(t.Context(), "edge", metav1.DeleteOptions{}))
		left, err := w.engine(w.RESTConfig()).Remove(t.Context(), w.get())
		assert.True(t, failure.Is(err, v1alpha1.ReasonSourceMissing), "%v", err)
		assert.True(t, left.Forbidden, "the deletion ends after its deadline, as without rights")
		assert.Equal(t, []string{"ConfigMap " + w.namespace + "/a"}, left.Objects)
		assert.NotNil(t, e.configMap(t, w.namespace, "a"))
		w.secret(t, "value", e.kubeconfig(t, ""))
	})
	t.Run("file of the program", func(t *testing.T) {
		w.secret(t, "value", strings.Replace(e.kubeconfig(t, ""), "token: ", "tokenFile: /etc/hostname, token: ", 1))
		w.fails(v1alpha1.ReasonManifestInvalid, `spec.kubeConfig: key "value" of Secret edge: tokenFile: no file is read: set token`)
		assert.NotContains(t, w.condition(v1alpha1.ConditionReady).Message, e.token)
	})
	// G10: the shared program contacts no address that only the program can reach.
	for name, server := range map[string]string{"metadata": "https://169.254.169.254", "itself": "https://127.0.0.1:8083", "Azure": "https://168.63.129.16"} {
		t.Run("address: "+name, func(t *testing.T) {
			w.secret(t, "value", e.kubeconfig(t, server))
			engine := w.engine(w.RESTConfig())
			engine.Remote.Guard = httpclient.NewGuard()
			cs := w.get()
			_, err := engine.Prepare(t.Context(), cs, &configsync.Rendered{})
			assert.True(t, failure.Is(err, v1alpha1.ReasonManifestInvalid), "%v", err)
			assert.ErrorContains(t, err, "which Stoker does not contact for a user")
		})
	}
}

// G10: if the answers of a server need too much memory, the run ends, but not the program.
func TestOtherClusterAnswersTooMuch(t *testing.T) {
	w := newWorld(t)
	hostile := `{"apiVersion": "v1", "kind": "ConfigMap", "a": [` + strings.Repeat("[],", 100_000) + `0]}`
	server := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		answer, known := map[string]string{
			"/api": `{"kind": "APIVersions", "versions": ["v1"]}`, "/apis": `{"kind": "APIGroupList", "apiVersion": "v1", "groups": []}`,
			"/api/v1": `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [{"name": "configmaps", "namespaced": true, "kind": "ConfigMap"}]}`,
		}[r.URL.Path]
		if !known {
			answer = hostile
		}
		_, _ = io.WriteString(rw, answer)
	}))
	t.Cleanup(server.Close)
	authority := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	w.secret(t, "value", fmt.Sprintf("{current-context: e, contexts: [{name: e, context: {cluster: e, user: e}}], clusters: [{name: e, cluster: {server: %q, certificate-authority-data: %s}}], users: [{name: e, user: {token: x}}]}",
		server.URL, authority))
	var all strings.Builder
	for i := range 60 {
		all.WriteString(configMap(fmt.Sprint("a-", i), "1"))
	}
	w.commit("k8s/a.yaml", all.String())
	w.create("kubeConfig: {secretRef: {name: edge}}")
	engine := w.engine(w.RESTConfig())
	own := w.admin
	engine.StatusClients = &own
	_, err := engine.Apply(t.Context(), w.get(), configsync.Options{})
	assert.True(t, failure.Is(err, v1alpha1.ReasonLimitExceeded), "%v", err)
	assert.Contains(t, w.condition(v1alpha1.ConditionReady).Message, "the answers of the server need more than")
}

// G4: values of Secrets appear in no plan, error, status or Event, whatever the API server repeats of them.
func TestPlantedSecretsAppearNowhere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, second string
		reason        v1alpha1.Reason
	}{
		"changed":           {"{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {password: S3CR3T-1}}", "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {password: S3CR3T-2}}", ""},
		"wrong type":        {"", "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {password: [S3CR3T-1]}}", v1alpha1.ReasonApplyRefused},
		"unknown field":     {"", "{apiVersion: v1, kind: Secret, metadata: {name: s}, S3CR3T: x}", v1alpha1.ReasonApplyRefused},
		"bad key":           {"", "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {\"S3CR3T 1\": x}}", v1alpha1.ReasonApplyRefused},
		"bad type":          {"", "{apiVersion: v1, kind: Secret, metadata: {name: s}, type: kubernetes.io/tls, stringData: {tls.crt: S3CR3T}}", v1alpha1.ReasonApplyRefused},
		"not base64":        {"", "{apiVersion: v1, kind: Secret, metadata: {name: s}, data: {a: S3CR3T-1}}", v1alpha1.ReasonApplyRefused},
		"from a template":   {"{apiVersion: v1, kind: ConfigMap, metadata: {name: s}, data: {a: x}}", "{apiVersion: v1, kind: ConfigMap, metadata: {name: s}, data: {'{{.Vars.password}}': '{{.Vars.password}}'}}", ""},
		"template, refused": {"", "{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {type: '{{.Vars.password}}', ports: [{port: 1}]}}", v1alpha1.ReasonApplyRefused},
		"template, schema":  {"", "{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {ports: '{{.Vars.password}}'}}", v1alpha1.ReasonApplyRefused},
		"template, error":   {"", "{apiVersion: v1, kind: ConfigMap, metadata: {name: s}, data: {a: '{{int .Vars.password}}'}}", v1alpha1.ReasonTemplateFailed},
		"template, YAML":    {"", "{apiVersion: v1, kind: ConfigMap, metadata: {name: s}, data: {{.Vars.password}}: *{{.Vars.password}} }", v1alpha1.ReasonManifestInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.ApplyYAML(t, w.namespace, "{apiVersion: v1, kind: Secret, metadata: {name: site}, stringData: {password: S3CR3T-site}}")
			w.create("render: {template: true, varsFrom: [{secretRef: {name: site}}]}")
			if c.first != "" {
				w.commit("k8s/a.yaml", c.first)
				w.must()
			}
			w.commit("k8s/a.yaml", c.second)
			r, err := w.apply()
			assert.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			text := w.said(r, err)
			assert.NotContains(t, text, "S3CR3T")
			assert.NotContains(t, text, "UzNDUjNU", "the secret must not appear in base64")
		})
	}
}

// echoing is an API server that fails requests of one method for objects with the name s, and repeats one of their values.
type echoing struct {
	http.RoundTripper
	method string
}

func (e echoing) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != e.method || !strings.HasSuffix(req.URL.Path, "/s") {
		return e.RoundTripper.RoundTrip(req)
	}
	status := apierrors.NewInternalError(errors.New("cannot store S3CR3T-1")).Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	text, err := json.Marshal(status)
	return &http.Response{
		StatusCode: http.StatusInternalServerError, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text)), Request: req,
	}, err
}

// G4: what the API server answers about an object that git no longer has is not shown.
func TestPrunedSecretsAppearNowhere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, method, kind string }{
		"Secret, read":      {"{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {password: S3CR3T-1}}", http.MethodGet, "Secret"},
		"Secret, deleted":   {"{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {password: S3CR3T-1}}", http.MethodDelete, "Secret"},
		"template, deleted": {"{apiVersion: v1, kind: ConfigMap, metadata: {name: s}, data: {a: '{{.Vars.password}}'}}", http.MethodDelete, "ConfigMap"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.ApplyYAML(t, w.namespace, "{apiVersion: v1, kind: Secret, metadata: {name: site}, stringData: {password: S3CR3T-1}}")
			w.create("render: {template: true, varsFrom: [{secretRef: {name: site}}]}")
			w.commit("k8s/a.yaml", configMap("a", "1")+c.text)
			w.must()
			w.commit("k8s/a.yaml", configMap("a", "1"))
			config := w.RESTConfig()
			config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return echoing{rt, c.method} })
			_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{})
			require.ErrorContains(t, err, c.kind+" "+w.namespace+"/s: InternalError (500)")
			assert.True(t, apierrors.IsInternalError(err), "the next run tries again")
			assert.NotContains(t, err.Error(), "S3CR3T")
		})
	}
}

// G4: the credentials for git come from a Secret that the caller may read; they appear in no error.
func TestCredentialsForGit(t *testing.T) {
	w := newWorld(t)
	w.server.SetAuth(gitserver.Basic("deploy", "S3CR3T-git"))
	w.commit("k8s/a.yaml", configMap("a", "1"))
	w.ApplyYAML(t, w.namespace, "{apiVersion: v1, kind: Secret, metadata: {name: git}, stringData: {username: deploy, password: S3CR3T-git}}")
	w.ApplyYAML(t, w.namespace, "{apiVersion: v1, kind: Secret, metadata: {name: wrong}, stringData: {username: deploy, password: S3CR3T-wrong}}")
	w.ApplyYAML(t, w.namespace, "{apiVersion: v1, kind: Secret, metadata: {name: empty}}")
	for name, c := range map[string]struct {
		secret string
		reason v1alpha1.Reason
	}{
		"right":   {"git", ""},
		"wrong":   {"wrong", v1alpha1.ReasonAuthFailed},
		"empty":   {"empty", v1alpha1.ReasonAuthFailed},
		"missing": {"none", v1alpha1.ReasonSourceMissing},
	} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.t = t
			w.create("source: {git: {authMethod: https, authSecretRef: {name: " + c.secret + "}}}")
			_, err := w.apply()
			assert.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			assert.NotContains(t, fmt.Sprint(err), "S3CR3T")
			if c.reason != "" {
				assert.Equal(t, string(c.reason), w.condition(v1alpha1.ConditionRefResolved).Reason)
			}
		})
	}
	t.Run("not readable", func(t *testing.T) {
		w := *w
		w.t = t
		w.create("source: {git: {authMethod: https, authSecretRef: {name: git}}}")
		_, err := w.engine(w.as(rule("stoker.io", "configsyncs,configsyncs/status", "get", "update"), rule("", "configmaps", "*"))).Apply(t.Context(), w.get(), configsync.Options{})
		assert.True(t, failure.Is(err, v1alpha1.ReasonApplyForbidden), "%v", err)
	})
}
