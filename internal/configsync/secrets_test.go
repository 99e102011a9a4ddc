package configsync_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

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
			text := fmt.Sprint(err)
			if r != nil && r.Plan != nil {
				text += r.Plan.String()
				assert.NotContains(t, r.Plan.String(), "S3CR3T")
			}
			object, err := json.Marshal(w.get())
			require.NoError(t, err)
			text += string(object)
			for _, e := range w.events() {
				text += e.Message
			}
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
