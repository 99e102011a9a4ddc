package forge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// restClient sends JSON requests about one repository.
type restClient struct {
	http *http.Client
	repo address
}

// join appends elements to an escaped path.
func join(path string, elements ...any) string {
	for _, e := range elements {
		path += "/" + fmt.Sprint(e)
	}
	return path
}

// query returns a query of keys and values. It leaves out empty values.
func query(keysAndValues ...string) url.Values {
	q := url.Values{}
	for pair := range slices.Chunk(keysAndValues, 2) {
		if pair[1] != "" {
			q.Set(pair[0], pair[1])
		}
	}
	return q
}

func convertAll[T any](list []T, convert func(*T) PullRequest) []PullRequest {
	out := make([]PullRequest, 0, len(list))
	for i := range list {
		out = append(out, convert(&list[i]))
	}
	return out
}

// perPage is small, because users choose how long the texts of pull requests are.
const perPage = 20

// readPages returns up to MaxListed pull requests of one page after the other, those for which keep returns true. short reports that a page with
// fewer than perPage is the last one. If a page exceeds maxAnswer, readPages reads its pull requests one by one.
func readPages(pages int, short bool, keep func(PullRequest) bool, get func(page, size int) ([]PullRequest, error)) ([]PullRequest, error) {
	var out []PullRequest
	full := perPage // what a full page has: a server may send fewer
	for n := range pages {
		list, err := get(n+1, perPage)
		if failure.Is(err, v1alpha1.ReasonLimitExceeded) {
			list, err = oneByOne(n*full, full, get)
		} else {
			full = len(list)
		}
		if err != nil {
			return nil, err
		}
		for _, pr := range list {
			same := func(p PullRequest) bool { return p.Number == pr.Number } // the first page may hide that full is less than perPage
			if keep(pr) && len(out) < MaxListed && !slices.ContainsFunc(out, same) {
				out = append(out, pr)
			}
		}
		if len(list) == 0 || short && len(list) < perPage || len(out) == MaxListed {
			break
		}
	}
	return out, nil
}

// oneByOne returns the pull requests that follow a number of first ones, at most n of them.
func oneByOne(first, n int, get func(page, size int) ([]PullRequest, error)) (list []PullRequest, err error) {
	for i := range n {
		one, err := get(first+i+1, 1)
		if err != nil || len(one) == 0 {
			return list, err
		}
		list = append(list, one...)
	}
	return list, nil
}

// all keeps each pull request.
func all(PullRequest) bool { return true }

// do sends in to an escaped path below the API, and decodes the answer into out. in and out may be nil.
func (r restClient) do(ctx context.Context, method, path string, query url.Values, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	target := r.repo.api.String() + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := r.http.Do(req)
	if err != nil {
		return clientError(err, r.repo.api.Host)
	}
	defer func() { _ = res.Body.Close() }()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return failure.New(v1alpha1.ReasonGitUnreachable, "the API at %s did not answer with the expected JSON", r.repo.api.Host)
	}
	return nil
}

// clientError adds a reason to the error of an http.Client, and removes the URL of the request. It returns nil for nil, and the error of a
// canceled request unchanged.
func clientError(err error, host string) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*failure.Error](err); ok {
		return f
	}
	if errors.Is(err, ErrExists) {
		return ErrExists
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		return failure.New(v1alpha1.ReasonGitTimeout, "the API at %s did not answer in time", host)
	}
	// The library could not decode a 2xx answer. Its error may quote the answer, which may echo the token.
	return failure.New(v1alpha1.ReasonGitUnreachable, "the API at %s did not answer with the expected JSON", host)
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && t.Timeout()
}

// commitID returns s if it identifies a commit, else "": Bitbucket returns only the first 12 digits.
func commitID(s string) string {
	if len(s) < 12 {
		return ""
	}
	return s
}
