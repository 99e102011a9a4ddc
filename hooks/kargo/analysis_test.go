package kargo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/expr-lang/expr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/program"
)

// These types are the parts of Argo Rollouts' kinds that our templates use. Unknown fields are errors.
type (
	argument struct {
		Name      string  `json:"name"`
		Value     *string `json:"value,omitempty"`
		ValueFrom *struct {
			SecretKeyRef struct {
				Name string `json:"name"`
				Key  string `json:"key"`
			} `json:"secretKeyRef"`
		} `json:"valueFrom,omitempty"`
	}
	web struct {
		URL            string `json:"url"`
		TimeoutSeconds int64  `json:"timeoutSeconds,omitempty"`
		JSONPath       string `json:"jsonPath,omitempty"`
		Headers        []struct {
			Key   string `json:"key"`
			Value string `json:"value"`
		} `json:"headers,omitempty"`
	}
	metric struct {
		Name                  string `json:"name"`
		Interval              string `json:"interval,omitempty"`
		Count                 int    `json:"count,omitempty"`
		SuccessCondition      string `json:"successCondition,omitempty"`
		FailureCondition      string `json:"failureCondition,omitempty"`
		FailureLimit          int    `json:"failureLimit,omitempty"`
		InconclusiveLimit     int    `json:"inconclusiveLimit,omitempty"`
		ConsecutiveErrorLimit *int   `json:"consecutiveErrorLimit,omitempty"`
		Provider              struct {
			Web *web `json:"web,omitempty"`
			Job *struct {
				Spec batchv1.JobSpec `json:"spec"`
			} `json:"job,omitempty"`
		} `json:"provider"`
	}
	analysis struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name   string            `json:"name"`
			Labels map[string]string `json:"labels,omitempty"`
		} `json:"metadata"`
		Spec struct {
			Args    []argument `json:"args"`
			Metrics []metric   `json:"metrics"`
		} `json:"spec"`
	}
)

var placeholder = regexp.MustCompile(`\{\{\s*args\.([\w-]+)\s*\}\}`)

// analyse reads a template and fills in the arguments, as a Stage passes them to an AnalysisRun.
func analyse(t *testing.T, name string, set map[string]string) (analysis, error) {
	t.Helper()
	b, err := os.ReadFile(files + "analysis/" + name + ".yaml")
	require.NoError(t, err)
	var template, run analysis
	require.NoError(t, yaml.UnmarshalStrict(b, &template))
	values := map[string]string{}
	for _, a := range template.Spec.Args {
		value, given := set[a.Name]
		switch {
		case given:
		case a.Value != nil:
			value = *a.Value
		case a.ValueFrom != nil:
			value = "s3cret"
		default:
			return analysis{}, fmt.Errorf("args.%s was not resolved", a.Name)
		}
		values[a.Name] = value
	}
	missing := ""
	text := placeholder.ReplaceAllStringFunc(string(b), func(m string) string {
		name := placeholder.FindStringSubmatch(m)[1]
		value, known := values[name]
		if !known {
			missing = name
		}
		quoted := strconv.Quote(value)
		return quoted[1 : len(quoted)-1]
	})
	if missing != "" {
		return analysis{}, fmt.Errorf("args.%s was not resolved", missing)
	}
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), &run))
	return run, nil
}

// measure makes one measurement of the web provider, and returns its outcome.
func (m metric) measure(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.Provider.Web.URL, nil)
	if err != nil {
		return "", err
	}
	for _, h := range m.Provider.Web.Headers {
		req.Header.Set(h.Key, h.Value)
	}
	answer, err := (&http.Client{Timeout: time.Duration(m.Provider.Web.TimeoutSeconds) * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	b, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode/100 != 2 {
		return "", errors.Join(err, fmt.Errorf("received non 2xx response code: %d", answer.StatusCode))
	}
	var data any
	if err := json.Unmarshal(b, &data); err != nil {
		return "", err
	}
	path := jsonpath.New("metric")
	if err := path.Parse(m.Provider.Web.JSONPath); err != nil {
		return "", err
	}
	found, err := path.FindResults(data)
	if err != nil || len(found) != 1 || len(found[0]) != 1 {
		return "", errors.Join(err, errors.New("the expression must have one result"))
	}
	env := map[string]any{"result": found[0][0].Interface()}
	for _, c := range []struct{ code, outcome string }{{m.FailureCondition, failed}, {m.SuccessCondition, "Successful"}} {
		v, err := expr.Eval(c.code, env)
		if err != nil {
			return "", err
		}
		if v == true {
			return c.outcome, nil
		}
	}
	return "Inconclusive", nil
}

// chosen is the commit of the Freight that the tests verify.
const chosen = "1111111111111111111111111111111111111111"

func TestStageVerification(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		get  answer
		want string
	}{
		{"all gateways run the ref", phase("Succeeded", ""), "Successful"},
		{"gateways behind", phase("Progressing", ""), "Inconclusive"},
		{"failed gateway", phase("Failed", ""), failed},
		{"another ref", phase("Superseded", ""), failed},
		{"wrong secret", says(401, `{"message": "no"}`), ""},
		{"answer without phase", says(200, `{}`), "Inconclusive"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newScript(t, nil, always(c.get))
			run, err := analyse(t, "stoker-status", map[string]string{"namespace": "plant", "gatewaysync": "site", "commit": chosen, "receiver": s.URL})
			require.NoError(t, err)
			require.Len(t, run.Spec.Metrics, 1)
			outcome, err := run.Spec.Metrics[0].measure(t.Context())
			assert.Equal(t, c.want, outcome)
			assert.Equal(t, c.want == "", err != nil, "%v", err)
			_, _, requests := s.seen()
			assert.Equal(t, chosen, requests[0].URL.Query().Get("commit"))
			assert.Equal(t, "Bearer s3cret", requests[0].Header.Get("Authorization"))
		})
	}
	_, err := analyse(t, "stoker-status", nil)
	require.Error(t, err, "argument without a value")
}

func TestVerificationJobIsValid(t *testing.T) {
	t.Parallel()
	run, err := analyse(t, "stoker-wait", map[string]string{"namespace": "plant", "gatewaysync": "site", "commit": chosen, "image": "hooks:1"})
	require.NoError(t, err)
	assert.Equal(t, "ClusterAnalysisTemplate", run.Kind)
	spec := run.Spec.Metrics[0].Provider.Job.Spec
	pod := spec.Template.Spec
	assert.Equal(t, []string{"wait", "site", "--namespace", "plant", "--commit", chosen, "--timeout", "10m"}, pod.Containers[0].Args)
	assert.Equal(t, "stoker-hooks", pod.ServiceAccountName)
	require.NotNil(t, pod.AutomountServiceAccountToken, "the account may disable the token mount")
	assert.True(t, *pod.AutomountServiceAccountToken)
	wait, err := time.ParseDuration(pod.Containers[0].Args[7])
	require.NoError(t, err)
	assert.Greater(t, float64(*spec.ActiveDeadlineSeconds), wait.Seconds()*float64(*spec.BackoffLimit+1), "the deadline must allow all attempts")
	text, err := yaml.Marshal(run)
	require.NoError(t, err)
	assert.NotContains(t, string(text), "{{args")

	c := kubetest.Control(t)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{GenerateName: "wait-"}, Spec: spec}
	_, err = c.Client(t).BatchV1().Jobs(c.Namespace(t)).Create(t.Context(), job, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	require.NoError(t, err)
}

// The ServiceAccount is in the namespace of the Project and has only read access in the namespace of the gateways.
func TestVerificationAcrossNamespaces(t *testing.T) {
	t.Parallel()
	p := plant.New(t, 1)
	p.Start()
	p.Converges("first", p.First)
	project := p.Cluster.Namespace(t)
	run, err := analyse(t, "stoker-wait", map[string]string{"namespace": p.Namespace, "gatewaysync": p.Name, "commit": p.First, "image": "hooks:1"})
	require.NoError(t, err)
	pod := run.Spec.Metrics[0].Provider.Job.Spec.Template.Spec
	args := append(pod.Containers[0].Args, "--kubeconfig", p.Cluster.Kubeconfig(), "--as", "system:serviceaccount:"+project+":"+pod.ServiceAccountName)
	binary := program.Build(t, "hooks")
	carryOut := func() (int, string) {
		cmd := exec.CommandContext(t.Context(), binary, args...)
		out, err := cmd.CombinedOutput()
		if _, ended := errors.AsType[*exec.ExitError](err); !ended {
			require.NoError(t, err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	code, said := carryOut()
	assert.Equal(t, 5, code, "without a binding: %s", said)

	p.Cluster.ApplyYAML(t, "", kubetest.Shipped(t, "../../kustomize/base", "ClusterRole/*"))
	p.Cluster.ApplyYAML(t, p.Namespace, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: kargo-verification}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: stoker-view}
subjects: [{kind: ServiceAccount, name: %s, namespace: %s}]
`, pod.ServiceAccountName, project))
	p.Eventually("the Job succeeds", func() bool {
		code, said = carryOut()
		return code == 0
	})
	assert.Contains(t, said, p.First[:7])
}
