package ignition

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Project is a project that the gateway has loaded: GET /data/api/v1/projects/list [SPEC].
type Project struct {
	Name, Parent string
	// InvalidParent reports that the parent is missing, not inheritable, or part of a cycle.
	InvalidParent bool
}

// Projects lists the projects that the gateway has loaded.
func (c *Client) Projects(ctx context.Context) ([]Project, error) {
	docs, err := list[projectDoc](ctx, c, "/data/api/v1/projects/list")
	projects := make([]Project, 0, len(docs))
	for _, p := range docs {
		projects = append(projects, p.project())
	}
	return projects, err
}

// Project looks up one project by name: GET /data/api/v1/projects/find/{name} [SPEC]. The error for a project that the
// gateway has not loaded is ErrNotFound. Project also finds projects that are not runnable; Projects may omit these [SPEC].
func (c *Client) Project(ctx context.Context, name string) (Project, error) {
	doc, err := get[projectDoc](ctx, c, "/data/api/v1/projects/find/"+url.PathEscape(name), nil)
	if err != nil {
		return Project{}, err
	}
	p := doc.project()
	if p.Name == "" {
		p.Name = name
	}
	return p, nil
}

type projectDoc struct {
	Name          text `json:"name"`
	Parent        text `json:"parent"`
	InvalidParent bool `json:"invalidParent"`
}

func (d projectDoc) project() Project {
	return Project{Name: d.Name.name(), Parent: d.Parent.name(), InvalidParent: d.InvalidParent}
}

// ResourceName is a configuration resource that the gateway has loaded.
type ResourceName struct {
	Name string
	// Modes are the collections that define it: external, core or a deployment mode.
	Modes []string
}

// ResourceNames lists the resources of one type: GET /data/api/v1/resources/names/<module>/<type> [SPEC]. The error for an
// unknown type is ErrNotFound.
func (c *Client) ResourceNames(ctx context.Context, module, typ string) ([]ResourceName, error) {
	docs, err := list[struct {
		Name  text        `json:"name"`
		Modes items[text] `json:"modes"`
	}](ctx, c, "/data/api/v1/resources/names/"+url.PathEscape(module)+"/"+url.PathEscape(typ))
	names := make([]ResourceName, 0, len(docs))
	for _, n := range docs {
		name := ResourceName{Name: string(n.Name)}
		for _, m := range n.Modes {
			name.Modes = append(name.Modes, string(m))
		}
		names = append(names, name)
	}
	return names, err
}

// Designer is an open Designer session.
type Designer struct {
	User string
	// Project is the project open in the session, or empty.
	Project string
}

// Designers lists the open Designer sessions: GET /data/api/v1/designers [SPEC].
func (c *Client) Designers(ctx context.Context) ([]Designer, error) {
	docs, err := list[struct {
		User    text `json:"user"`
		Project text `json:"project"`
	}](ctx, c, "/data/api/v1/designers")
	sessions := make([]Designer, 0, len(docs))
	for _, d := range docs {
		sessions = append(sessions, Designer{User: oneLine(string(d.User), 100), Project: d.Project.name()})
	}
	return sessions, err
}

// Modules lists the ids of the modules that run: GET /data/api/v1/modules/healthy [SPEC]. The folders of resources are named for these
// ids, because the SDK names a resource type by the id of its module and its own.
func (c *Client) Modules(ctx context.Context) ([]string, error) {
	docs, err := list[struct {
		ID text `json:"id"`
	}](ctx, c, "/data/api/v1/modules/healthy")
	ids := make([]string, 0, len(docs))
	for _, m := range docs {
		ids = append(ids, m.ID.name())
	}
	return ids, err
}

const (
	pageSize = 500
	maxPages = 100
	// maxItems bounds one page and the whole list, because a gateway may ignore the requested page size.
	maxItems = pageSize * maxPages
	// maxListBytes bounds all pages of a list together, because an item can be of any size.
	maxListBytes = 16 << 20
)

// items is a JSON list of at most maxItems values. Decoding stops at the first item beyond, because items of a few bytes take
// a hundred times as much memory as their JSON.
type items[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (l *items[T]) UnmarshalJSON(raw []byte) error {
	*l = nil
	d := json.NewDecoder(bytes.NewReader(raw))
	switch start, err := d.Token(); {
	case err != nil:
		return err
	case start == nil:
		return nil
	case start != json.Delim('['):
		return errors.New("expected a list") // start may be a long text, and have the API key
	}
	for d.More() {
		if len(*l) == maxItems {
			return fmt.Errorf("a list has more than %d items", maxItems)
		}
		var item T
		if err := d.Decode(&item); err != nil {
			return err
		}
		*l = append(*l, item)
	}
	return nil
}

// page is one response of a list route [SPEC].
type page[T any] struct {
	Items    items[T] `json:"items"`
	Metadata struct {
		Total    int `json:"total"`
		Matching int `json:"matching"`
	} `json:"metadata"`
}

// list reads all pages of a list. A list beyond the bounds is an error, never silently truncated.
func list[T any](ctx context.Context, c *Client, path string) ([]T, error) {
	var all []T
	size := 0
	for range maxPages {
		r := call{method: http.MethodGet, path: path, query: url.Values{"limit": {strconv.Itoa(pageSize)}, "offset": {strconv.Itoa(len(all))}}}
		got, err := c.do(ctx, r)
		if err != nil {
			return nil, err
		}
		if size += len(got.body); size > maxListBytes {
			return nil, failure.New(v1alpha1.ReasonGatewayUnreachable,
				"the list %s of %s has more than %d MiB: is this an Ignition gateway?", path, c.base, maxListBytes>>20)
		}
		doc, err := decode[page[T]](c, r, got)
		if err != nil {
			return nil, err
		}
		if len(all)+len(doc.Items) > maxItems {
			break
		}
		all = append(all, doc.Items...)
		if len(doc.Items) == 0 || len(all) >= max(doc.Metadata.Matching, doc.Metadata.Total) {
			return all, nil
		}
	}
	return nil, failure.New(v1alpha1.ReasonGatewayUnreachable,
		"the list %s of %s did not end after %d items or %d pages: is this an Ignition gateway?", path, c.base, maxItems, maxPages)
}
