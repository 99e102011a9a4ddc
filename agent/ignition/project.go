package ignition

import (
	"context"
	"net/url"
)

// Project looks up one project by name: GET /data/api/v1/projects/find/{name} [SPEC]. A project that the gateway has
// not loaded is ErrNotFound. It also finds projects that the list may omit, which the vendor's document describes as
// the list of runnable projects.
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
	Title         text `json:"title"`
	Parent        text `json:"parent"`
	Enabled       bool `json:"enabled"`
	Inheritable   bool `json:"inheritable"`
	InvalidParent bool `json:"invalidParent"`
}

func (d projectDoc) project() Project {
	return Project{
		Name: string(d.Name), Title: string(d.Title), Parent: string(d.Parent),
		Enabled: d.Enabled, Inheritable: d.Inheritable, InvalidParent: d.InvalidParent,
	}
}
