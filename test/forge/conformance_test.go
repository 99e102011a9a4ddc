// Package forge_test compares the requests of package forge, and the answers of the fakes in forgetest, with extracts of the published
// descriptions of the APIs. Clients and fakes have one author: without a third side they could merely agree with each other.
package forge_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/forge/forgetest"
	"stoker.io/stoker/internal/giturl"
)

func TestConformance(t *testing.T) {
	for _, provider := range forgetest.Providers {
		t.Run(provider, func(t *testing.T) {
			d := load(t, provider)
			f := forgetest.Start(t, provider, func(next http.Handler) http.Handler { return d.check(t, next) })
			forgetest.Suite(t, f.Env(t))
			_, err := f.Forge(t, "wrong").Open(t.Context(), "main")
			require.Error(t, err)
			assert.Empty(t, d.unused(), "the extract has operations that no request uses")
		})
	}
}

// description is the description of one API.
type description struct {
	doc    *openapi3.T
	router routers.Router

	mu   sync.Mutex
	used map[*openapi3.Operation]bool
}

func load(t *testing.T, provider string) *description {
	t.Helper()
	path := filepath.Join("testdata", provider+".yaml")
	doc, err := openapi3.NewLoader().LoadFromFile(path)
	require.NoError(t, err)
	require.NoError(t, doc.Validate(t.Context()))
	router, err := gorillamux.NewRouter(doc)
	require.NoError(t, err)
	return &description{doc: doc, router: router, used: map[*openapi3.Operation]bool{}}
}

// check validates each request and each answer of next.
func (d *description) check(t *testing.T, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		again := func() io.ReadCloser { return io.NopCloser(bytes.NewReader(body)) }
		r.Body = again()
		in, err := d.request(r)
		assert.NoError(t, err, "%s %s\n%s", r.Method, r.URL, body)
		r.Body = again()
		answer := httptest.NewRecorder()
		next.ServeHTTP(answer, r)
		if in != nil {
			assert.NoError(t, d.response(in, answer), "%s %s answers %d\n%s", r.Method, r.URL, answer.Code, answer.Body)
		}
		for name, values := range answer.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	})
}

// undeclared is a query parameter that the description does not have. Package openapi3filter accepts those.
type undeclared string

func (u undeclared) Error() string { return "the query parameter " + string(u) + " is not described" }

func (d *description) request(r *http.Request) (*openapi3filter.RequestValidationInput, error) {
	route, params, err := d.router.FindRoute(r)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.used[route.Operation] = true
	d.mu.Unlock()
	in := &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true},
	}
	for name := range r.URL.Query() {
		if route.Operation.Parameters.GetByInAndName("query", name) == nil && route.PathItem.Parameters.GetByInAndName("query", name) == nil {
			return in, undeclared(name)
		}
	}
	return in, openapi3filter.ValidateRequest(r.Context(), in)
}

func (d *description) response(in *openapi3filter.RequestValidationInput, answer *httptest.ResponseRecorder) error {
	return openapi3filter.ValidateResponse(in.Request.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: answer.Code, Header: answer.Header(), Body: io.NopCloser(bytes.NewReader(answer.Body.Bytes())),
		Options: in.Options,
	})
}

// unused returns the operations that no request has used.
func (d *description) unused() []string {
	var out []string
	for path, item := range d.doc.Paths.Map() {
		for method, o := range item.Operations() {
			if !d.used[o] {
				out = append(out, method+" "+path)
			}
		}
	}
	slices.Sort(out)
	return out
}

// TestConformanceRefuses: a validation that accepts everything would pass, too.
func TestConformanceRefuses(t *testing.T) {
	d := load(t, giturl.GitHub)
	request := func(method, path, body string) error {
		r := httptest.NewRequest(method, "http://x/api/v3/repos/plant/config"+path, bytes.NewReader([]byte(body)))
		r.Header.Set("Content-Type", "application/json")
		_, err := d.request(r)
		return err
	}
	require.NoError(t, request("POST", "/pulls", `{"title":"t","head":"h","base":"b"}`))
	for name, err := range map[string]error{
		"unknown path":      request("GET", "/pull", ""),
		"unknown method":    request("DELETE", "/pulls", ""),
		"unknown parameter": request("GET", "/pulls?branch=x", ""),
		"wrong value":       request("GET", "/pulls?state=merged", ""),
		"unknown property":  request("POST", "/pulls", `{"title":"t","head":"h","base":"b","labels":["x"]}`),
		"missing property":  request("POST", "/pulls", `{"title":"t","head":"h"}`),
	} {
		t.Run(name, func(t *testing.T) { assert.Error(t, err) })
	}
	in, err := d.request(httptest.NewRequest("GET", "http://x/api/v3/repos/plant/config/pulls/1", nil))
	require.NoError(t, err)
	for name, text := range map[string]string{"missing properties": `{}`, "no JSON": `<html>`} {
		t.Run(name, func(t *testing.T) {
			answer := httptest.NewRecorder()
			answer.Header().Set("Content-Type", "application/json")
			_, _ = answer.WriteString(text)
			assert.Error(t, d.response(in, answer))
		})
	}
	answer := httptest.NewRecorder()
	answer.WriteHeader(http.StatusTeapot)
	assert.Error(t, d.response(in, answer), "unknown status")
}
