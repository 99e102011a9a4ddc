package kargo

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/expr-lang/expr"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// These types are the parts of Kargo's kinds that a promotion uses. Unknown fields are errors.
type (
	variable struct {
		Name  string `json:"name"`
		Value string `json:"value,omitempty"`
	}
	retry struct {
		Timeout        string `json:"timeout,omitempty"`
		ErrorThreshold uint32 `json:"errorThreshold,omitempty"`
	}
	taskRef struct {
		Name string `json:"name"`
		Kind string `json:"kind,omitempty"`
	}
	step struct {
		Uses            string         `json:"uses,omitempty"`
		Task            *taskRef       `json:"task,omitempty"`
		As              string         `json:"as,omitempty"`
		If              string         `json:"if,omitempty"`
		ContinueOnError bool           `json:"continueOnError,omitempty"`
		Retry           *retry         `json:"retry,omitempty"`
		Vars            []variable     `json:"vars,omitempty"`
		Config          map[string]any `json:"config,omitempty"`
	}
	task struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name   string            `json:"name"`
			Labels map[string]string `json:"labels,omitempty"`
		} `json:"metadata"`
		Spec struct {
			Vars  []variable `json:"vars,omitempty"`
			Steps []step     `json:"steps"`
		} `json:"spec"`
	}
	// commit is the result of commitFrom() for the Freight.
	commit struct{ RepoURL, ID, Branch, Tag string }
)

const (
	succeeded = "Succeeded"
	failed    = "Failed"
	errored   = "Errored"
	skipped   = "Skipped"
	running   = "Running"
)

// files is the folder of the files that the chart, kustomize and users install.
const files = "../../charts/stoker/files/kargo/"

func readTask(t *testing.T, file string) task {
	t.Helper()
	b, err := os.ReadFile(files + file)
	require.NoError(t, err)
	var read task
	require.NoError(t, yaml.UnmarshalStrict(b, &read), file)
	return read
}

// tasks returns the shipped tasks by name.
func tasks(t *testing.T) map[string]task {
	t.Helper()
	names, err := filepath.Glob(files + "stoker-*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	all := map[string]task{}
	for _, name := range names {
		one := readTask(t, filepath.Base(name))
		all[one.Metadata.Name] = one
	}
	return all
}

// promotion is a Kargo Promotion together with the controller that runs it.
type promotion struct {
	name, project, stage, freight, actor string
	steps                                []step
	secrets                              map[string]map[string]string
	commits                              []commit
	scale                                float64       // factor by which the clock is faster than Kargo's
	clock                                time.Duration // elapsed time on the clock
	real                                 bool          // the receiver is real, so retries run at Kargo's own pace
	// others are the steps that are neither http, fail nor compose-output, by the name in uses.
	others map[string]func(config map[string]any) (map[string]any, error)

	state   map[string]any
	done    []record
	at      int
	phase   string
	message string
}

// record is the recorded state of a step's execution.
type record struct {
	alias, status, message string
	started                time.Duration
	errors, inARow         uint32
	config                 map[string]any
}

// inflate replaces each step that names a task with the steps of the task.
func (p *promotion) inflate(all map[string]task) error {
	var flat []step
	for i, s := range p.steps {
		alias := s.As
		if alias == "" {
			alias = "step-" + strconv.Itoa(i)
		}
		if s.Task == nil {
			s.As = alias
			flat = append(flat, s)
			continue
		}
		if s.Task.Kind != "ClusterPromotionTask" {
			return fmt.Errorf("task %s: kind %q is looked for in the Project", s.Task.Name, s.Task.Kind)
		}
		one, found := all[s.Task.Name]
		if !found {
			return fmt.Errorf("there is no ClusterPromotionTask %s", s.Task.Name)
		}
		vars, err := taskVars(one.Spec.Vars, s.Vars)
		if err != nil {
			return err
		}
		for j, inner := range one.Spec.Steps {
			if inner.As == "" {
				inner.As = "step-" + strconv.Itoa(j)
			}
			inner.As = alias + "::" + inner.As
			inner.Vars = append(append([]variable(nil), vars...), inner.Vars...)
			flat = append(flat, inner)
		}
	}
	p.steps = flat
	return nil
}

// taskVars merges the defaults of a task with the vars of the Stage. A var without a default is required.
func taskVars(defaults, set []variable) ([]variable, error) {
	given := func(list []variable, name string) bool {
		for _, v := range list {
			if v.Name == name && v.Value != "" {
				return true
			}
		}
		return false
	}
	var vars []variable
	for _, v := range defaults {
		switch {
		case v.Value != "":
			vars = append(vars, v)
		case !given(set, v.Name):
			return nil, fmt.Errorf("missing value for variable %q", v.Name)
		}
	}
	return append(vars, set...), nil
}

// run runs the promotion to its end. It calls before ahead of each visit of the controller.
func (p *promotion) run(ctx context.Context, before func(visit int)) error {
	for visit := range 10_000 {
		if before != nil {
			before(visit)
		}
		again := p.visit(ctx)
		p.persist()
		if p.phase != "" {
			return nil
		}
		p.clock += again
		scale := p.scale
		if p.real && p.done[p.at].config["method"] == http.MethodPost {
			scale = 1
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(float64(again) / scale)):
		}
	}
	return fmt.Errorf("promotion %s did not end", p.name)
}

// restart simulates a new controller pod: all steps run again with the existing state.
func (p *promotion) restart() { p.at, p.done = 0, nil }

// persist simulates how Kargo stores the outputs in the Promotion's status between two visits. Numbers lose their types there.
func (p *promotion) persist() {
	b, err := json.Marshal(p.state)
	if err == nil {
		p.state = map[string]any{}
		err = json.Unmarshal(b, &p.state)
	}
	if err != nil {
		panic(err)
	}
}

// visit runs steps until one must wait, and returns how long. The phase stays "" until the promotion ends.
func (p *promotion) visit(ctx context.Context) (again time.Duration) {
	if p.state == nil {
		p.state = map[string]any{}
	}
	for ; p.at < len(p.steps); p.at++ {
		s := p.steps[p.at]
		if len(p.done) == p.at {
			p.done = append(p.done, record{alias: s.As, started: p.clock})
		}
		r := &p.done[p.at]
		skip, err := p.skips(s)
		if err != nil {
			r.status, r.message = errored, "if: "+err.Error()
			continue
		}
		if skip {
			r.status = skipped
			continue
		}
		r.config, err = p.config(s)
		if err != nil {
			r.status, r.message = errored, "failed to build step context: "+err.Error()
			continue
		}
		status, out, again, err := p.step(ctx, s, r.config)
		p.propagate(s, out)
		r.status, r.message = status, ""
		if !p.finished(s, r, err) {
			return r.wait(again, err)
		}
	}
	p.phase, p.message = succeeded, ""
	for i, r := range p.done {
		if (r.status == errored || r.status == failed) && !p.steps[i].ContinueOnError {
			p.phase, p.message = r.status, r.message
			break
		}
	}
	return 0
}

// wait returns the delay until the next visit: exponential backoff after an error, otherwise the delay of the step, at least ten
// seconds.
func (r *record) wait(again time.Duration, err error) time.Duration {
	if err == nil {
		r.inARow = 0
		return max(again, 10*time.Second)
	}
	r.inARow++
	return min(5*time.Millisecond<<(r.inARow-1), 1000*time.Second)
}

// finished reports whether a step has ended. If it ended because of err or its timeout, finished sets its status and its message.
func (p *promotion) finished(s step, r *record, err error) bool {
	switch {
	case err == nil && (r.status == succeeded || r.status == skipped):
		return true
	case err != nil && terminal(err):
		r.status, r.message = failed, fmt.Sprintf("step %q: %s", s.As, err)
		return true
	case err != nil:
		r.errors++
		threshold := uint32(1)
		if s.Retry != nil && s.Retry.ErrorThreshold > 0 {
			threshold = s.Retry.ErrorThreshold
		}
		if r.errors >= threshold {
			r.status, r.message = errored, fmt.Sprintf("step %q met error threshold of %d: %s", s.As, threshold, err)
			return true
		}
	}
	timeout := time.Duration(0) // no timeout
	if s.Retry != nil && s.Retry.Timeout != "" {
		timeout, _ = time.ParseDuration(s.Retry.Timeout)
	}
	if timeout > 0 && p.clock-r.started > timeout {
		r.status, r.message = errored, fmt.Sprintf("step %q timed out after %s", s.As, timeout)
		return true
	}
	return false
}

func (p *promotion) propagate(s step, out map[string]any) {
	p.state[s.As] = out
	if group, _, in := strings.Cut(s.As, "::"); in && s.Uses == "compose-output" {
		of, _ := p.state[group].(map[string]any)
		if of == nil {
			of = map[string]any{}
		}
		maps.Copy(of, out)
		p.state[group] = of
	}
}

func (p *promotion) failing() bool {
	for i := range p.done[:p.at] {
		if s := p.done[i].status; (s == errored || s == failed) && !p.steps[i].ContinueOnError {
			return true
		}
	}
	return false
}

func (p *promotion) skips(s step) (bool, error) {
	if s.If == "" {
		return p.failing(), nil
	}
	env, err := p.env(s)
	if err != nil {
		return false, err
	}
	v, err := evaluate(s.If, env, p.functions(s)...)
	if err != nil {
		return false, err
	}
	run, is := v.(bool)
	if !is {
		return false, fmt.Errorf("%q is %T and no boolean", s.If, v)
	}
	return !run, nil
}

func (p *promotion) config(s step) (map[string]any, error) {
	env, err := p.env(s)
	if err != nil {
		return nil, err
	}
	v, err := evaluateAll(s.Config, env, p.functions(s)...)
	if err != nil {
		return nil, err
	}
	return v.(map[string]any), nil
}

// env returns the environment of expressions: ctx, vars, outputs and, inside a task, task.outputs.
func (p *promotion) env(s step) (map[string]any, error) {
	vars := map[string]any{}
	env := map[string]any{"vars": vars, "ctx": map[string]any{
		"project": p.project, "promotion": p.name, "stage": p.stage, "uiBaseUrl": "https://kargo.example.com",
		"targetFreight": map[string]any{"name": p.freight, "origin": map[string]any{"name": "ignition"}},
		"meta":          map[string]any{"promotion": map[string]any{"actor": p.actor, "rollback": false}},
	}}
	list := func(all []variable) error {
		for _, v := range all {
			value, err := evaluate(v.Value, env, p.functions(s)...)
			if err != nil {
				return fmt.Errorf("variable %q: %w", v.Name, err)
			}
			vars[v.Name] = value
		}
		return nil
	}
	env["outputs"] = p.state
	if group, _, in := strings.Cut(s.As, "::"); in {
		outputs := map[string]any{}
		for alias, out := range p.state {
			if short, mine := strings.CutPrefix(alias, group+"::"); mine {
				outputs[short] = out
			}
		}
		env["task"] = map[string]any{"outputs": outputs}
	}
	return env, list(s.Vars)
}

func (p *promotion) functions(s step) []expr.Option {
	group, _, _ := strings.Cut(s.As, "::")
	return []expr.Option{
		expr.Function("secret", func(args ...any) (any, error) {
			data := map[string]string{}
			maps.Copy(data, p.secrets[args[0].(string)])
			return data, nil
		}, new(func(string) map[string]string)),
		expr.Function("commitFrom", func(args ...any) (any, error) {
			for _, c := range p.commits {
				if c.RepoURL == args[0] {
					return c, nil
				}
			}
			return nil, nil // reading Tag of it is an error
		}, new(func(string) any)),
		expr.Function("failure", func(...any) (any, error) { return p.failing(), nil }, new(func() bool)),
		expr.Function("status", func(args ...any) (any, error) {
			for _, r := range p.done {
				if r.alias == args[0] || r.alias == group+"::"+args[0].(string) {
					return r.status, nil
				}
			}
			return "", nil
		}, new(func(string) string)),
	}
}

// step runs one step.
func (p *promotion) step(ctx context.Context, s step, config map[string]any) (status string, out map[string]any, again time.Duration, err error) {
	if s.Uses == "compose-output" {
		return succeeded, config, 0, nil
	}
	if wrong := steps[s.Uses].check("config", config); len(wrong) > 0 || steps[s.Uses] == nil {
		return failed, nil, 0, &terminalError{fmt.Errorf("invalid %s config: %s", s.Uses, strings.Join(wrong, "; "))}
	}
	switch {
	case s.Uses == "http":
		status, out, again, err = httpStep(ctx, config)
	case s.Uses == "fail":
		err = &terminalError{fmt.Errorf("failed with message: %v", config["message"])}
	case p.others[s.Uses] != nil:
		status = succeeded
		out, err = p.others[s.Uses](config)
	default:
		err = &terminalError{fmt.Errorf("unsupported step %s", s.Uses)}
	}
	if terminal(err) {
		return failed, nil, 0, err
	}
	if err != nil {
		return errored, nil, 0, fmt.Errorf("error running step %q: %w", s.As, err)
	}
	return status, out, again, nil
}
