// Package kargo tests the Kargo integration of charts/stoker/files/kargo: ClusterPromotionTasks, and ClusterAnalysisTemplates that verify
// a Stage. It implements the necessary parts of Kargo: inflating tasks, evaluating expressions, the http step, and restarts. Some tests
// simulate the receiver (type script). Others use the real receiver and real agents (type line).
package kargo

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"stoker.io/stoker/test/fleet/plant"
)

const maxResponse = 2 << 20

// httpStep implements the http step: it sends one request and evaluates the expressions on the response.
func httpStep(ctx context.Context, config map[string]any) (status string, out map[string]any, again time.Duration, err error) {
	env, code, err := send(ctx, config)
	if err != nil {
		return errored, nil, 0, err
	}
	success, err := verdict(config, "successExpression", env)
	if err != nil {
		return errored, nil, 0, err
	}
	failure, err := verdict(config, "failureExpression", env)
	if err != nil {
		return errored, nil, 0, err
	}
	switch {
	case failure != nil && *failure:
		why := fmt.Sprintf("HTTP (%d) response met failure criteria", code)
		more, err := reason(config, env)
		if err != nil {
			return errored, nil, 0, err
		}
		if more != "" {
			why += fmt.Sprintf(": %q", more)
		}
		return failed, nil, 0, &terminalError{errors.New(why)}
	case success != nil && *success, success == nil && failure == nil && code/100 == 2:
		out, err = outputs(config, env)
		if err != nil {
			return errored, nil, 0, err
		}
		return succeeded, out, 0, nil
	case success == nil && failure == nil:
		return failed, nil, 0, fmt.Errorf("HTTP %d", code)
	}
	again = 30 * time.Second
	if text, set := config["pollInterval"].(string); set {
		again, err = time.ParseDuration(text)
	}
	return running, nil, again, err
}

// send sends the request and returns the environment of the expressions.
func send(ctx context.Context, config map[string]any) (env map[string]any, code int, err error) {
	method, _ := config["method"].(string)
	body, _ := config["body"].(string)
	req, err := http.NewRequestWithContext(ctx, method, config["url"].(string), strings.NewReader(body))
	if err != nil {
		return nil, 0, &terminalError{err}
	}
	for _, h := range pairs(config["headers"]) {
		req.Header.Add(h[0], h[1])
	}
	if params := pairs(config["queryParams"]); len(params) > 0 {
		query := req.URL.Query()
		for _, p := range params {
			query.Add(p[0], p[1])
		}
		req.URL.RawQuery = query.Encode()
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	if text, set := config["timeout"].(string); set {
		if client.Timeout, err = time.ParseDuration(text); err != nil {
			return nil, 0, &terminalError{err}
		}
	}
	answer, err := client.Do(req)
	if err != nil {
		return nil, 0, fmt.Errorf("error sending HTTP request: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(answer.Body, maxResponse+1))
	if err != nil || len(b) > maxResponse {
		return nil, 0, fmt.Errorf("reading response body: %w", errors.Join(err, errors.New("at most 2 MiB are read")))
	}
	parsed, err := parse(answer.Header.Get("Content-Type"), b)
	if err != nil {
		return nil, 0, err
	}
	return map[string]any{"response": map[string]any{
		"status": int64(answer.StatusCode), "header": answer.Header.Get, "headers": answer.Header, "body": parsed,
	}}, answer.StatusCode, nil
}

func parse(contentType string, b []byte) (any, error) {
	kind, _, _ := mime.ParseMediaType(contentType)
	var v any = map[string]any{}
	switch {
	case len(b) == 0:
	case kind == "text/plain":
		v = string(b)
	case kind == "application/yaml", kind == "text/yaml", kind == "application/x-yaml":
		return v, yaml.Unmarshal(b, &v)
	case kind == "application/json" || json.Valid(b):
		return v, json.Unmarshal(b, &v)
	}
	return v, nil
}

func pairs(list any) [][2]string {
	all, _ := list.([]any)
	out := make([][2]string, 0, len(all))
	for _, one := range all {
		p := one.(map[string]any)
		out = append(out, [2]string{p["name"].(string), p["value"].(string)})
	}
	return out
}

// verdict evaluates an optional expression. It returns nil if there is none.
func verdict(config map[string]any, name string, env map[string]any) (*bool, error) {
	code, _ := config[name].(string)
	if code == "" {
		return nil, nil
	}
	v, err := judge(code, env)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	b, is := v.(bool)
	if !is {
		return nil, fmt.Errorf("%s is %T and no boolean", name, v)
	}
	return &b, nil
}

// reason evaluates errorExpression. It returns "" if the step has no errorExpression or the evaluation fails, and an error only if the expression
// does not compile.
func reason(config map[string]any, env map[string]any) (string, error) {
	code, _ := config["errorExpression"].(string)
	if code == "" {
		return "", nil
	}
	v, err := judge(code, env)
	if terminal(err) {
		return "", err
	}
	text, _ := v.(string)
	return text, nil
}

func outputs(config map[string]any, env map[string]any) (map[string]any, error) {
	out := map[string]any{}
	list, _ := config["outputs"].([]any)
	for _, one := range list {
		o := one.(map[string]any)
		v, err := judge(o["fromExpression"].(string), env)
		if err != nil {
			return nil, fmt.Errorf("output %v: %w", o["name"], err)
		}
		out[o["name"].(string)] = v
	}
	return out, nil
}

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "6"); err != nil { // these tests mostly wait
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	plant.Main(m)
}
