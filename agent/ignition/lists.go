package ignition

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Project is a project as the gateway has it loaded: GET /data/api/v1/projects/list [SPEC].
type Project struct {
	Name, Title, Parent string
	Enabled             bool
	// InvalidParent is true where the parent is missing, not inheritable, or part of a circle.
	InvalidParent bool
	Inheritable   bool
}

// Projects lists the projects that the gateway has loaded.
func (c *Client) Projects(ctx context.Context) ([]Project, error) {
	items, err := list[projectDoc](ctx, c, "/data/api/v1/projects/list")
	projects := make([]Project, 0, len(items))
	for _, p := range items {
		projects = append(projects, p.project())
	}
	return projects, err
}

// ResourceName is a configuration resource as the gateway has it loaded.
type ResourceName struct {
	Name    string
	Enabled bool
	// Modes are the collections that define it: external, core, a deployment mode.
	Modes []string
}

// ResourceNames lists the resources of one type: GET /data/api/v1/resources/names/<module>/<type> [SPEC]. A type that
// the gateway does not know is ErrNotFound.
func (c *Client) ResourceNames(ctx context.Context, module, typ string) ([]ResourceName, error) {
	items, err := list[struct {
		Name    text   `json:"name"`
		Enabled *bool  `json:"enabled"`
		Modes   []text `json:"modes"`
	}](ctx, c, "/data/api/v1/resources/names/"+url.PathEscape(module)+"/"+url.PathEscape(typ))
	names := make([]ResourceName, 0, len(items))
	for _, n := range items {
		name := ResourceName{Name: string(n.Name), Enabled: n.Enabled == nil || *n.Enabled}
		for _, m := range n.Modes {
			name.Modes = append(name.Modes, string(m))
		}
		names = append(names, name)
	}
	return names, err
}

// Designer is an open Designer session.
type Designer struct {
	ID, User string
	// Project is the project that is open in it; empty while none is.
	Project string
	Address string
	// LastSeen is the gateway's figure of when the session was heard of last, zero where it gives none.
	LastSeen time.Time
}

// Designers lists the open Designer sessions: GET /data/api/v1/designers [SPEC].
func (c *Client) Designers(ctx context.Context) ([]Designer, error) {
	items, err := list[struct {
		ID       text  `json:"id"`
		User     text  `json:"user"`
		Project  text  `json:"project"`
		Address  text  `json:"address"`
		LastComm stamp `json:"lastcomm"`
	}](ctx, c, "/data/api/v1/designers")
	sessions := make([]Designer, 0, len(items))
	for _, d := range items {
		sessions = append(sessions, Designer{
			ID: string(d.ID), User: oneLine(string(d.User), 100), Project: string(d.Project),
			Address: oneLine(string(d.Address), 100), LastSeen: d.LastComm.Time,
		})
	}
	return sessions, err
}

const (
	pageSize = 500
	maxPages = 100 // so that no list takes more than 50,000 items
)

// page is one answer of a list route [SPEC].
type page[T any] struct {
	Items    []T `json:"items"`
	Metadata struct {
		Total    int `json:"total"`
		Matching int `json:"matching"`
	} `json:"metadata"`
}

// list reads a list page by page. A list that is longer than its bound is an error, never a silent part of it.
func list[T any](ctx context.Context, c *Client, path string) ([]T, error) {
	var items []T
	for range maxPages {
		query := url.Values{"limit": {strconv.Itoa(pageSize)}, "offset": {strconv.Itoa(len(items))}}
		doc, err := get[page[T]](ctx, c, path, query)
		if err != nil {
			return nil, err
		}
		items = append(items, doc.Items...)
		if len(doc.Items) == 0 || len(items) >= max(doc.Metadata.Matching, doc.Metadata.Total) {
			return items, nil
		}
	}
	return nil, failure.New(v1alpha1.ReasonGatewayUnreachable,
		"the list %s of %s did not end after %d pages: is this an Ignition gateway?", path, c.base, maxPages)
}
