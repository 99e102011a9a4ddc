package display

import (
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/configsync/plan"
)

// ListObject returns a list of objects as kubectl prints it.
func ListObject(items []any) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "List", "items": items}
}

// Objects returns a table of the objects of a commit. Unless showSecrets is true, it redacts Secrets, and leaves objects out of
// JSON and YAML that may hold values of Secrets in other fields. It returns the ids of both.
func Objects(list []manifest.Object, showSecrets bool) (r *output.Result, withoutValues, hidden []manifest.ID) {
	r = &output.Result{Head: []string{"TYPE", "NAMESPACE", "NAME", "FILE"}}
	items := []any{}
	for _, o := range list {
		id := o.ID()
		r.Add(id.Type()+"/"+id.Name, id.Type(), id.Namespace, id.Name, o.File)
		switch {
		case showSecrets || !o.Confidential():
			items = append(items, o.Object)
		case id.IsSecret() && !o.Tainted:
			items, withoutValues = append(items, redacted(o)), append(withoutValues, id)
		default:
			hidden = append(hidden, id)
		}
	}
	r.Data = ListObject(items)
	return r, withoutValues, hidden
}

// redacted returns a Secret without its values. An API server refuses it, because the values are not base64.
func redacted(o manifest.Object) map[string]any {
	metadata := map[string]any{"name": o.GetName()}
	if o.GetNamespace() != "" {
		metadata["namespace"] = o.GetNamespace()
	}
	keys := map[string]any{}
	for _, field := range []string{"data", "stringData"} {
		if data, ok := o.Object[field].(map[string]any); ok {
			for key := range data {
				keys[key] = "REDACTED*"
			}
		}
	}
	return map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": keys}
}

// PlannedObject is an object of a plan in JSON and YAML.
type PlannedObject struct {
	Action    plan.Action     `json:"action"`
	Type      string          `json:"type"`
	Namespace string          `json:"namespace,omitempty"`
	Name      string          `json:"name"`
	File      string          `json:"file,omitempty"`
	Fields    []string        `json:"fields,omitempty"`
	Reason    v1alpha1.Reason `json:"reason,omitempty"`
	Message   string          `json:"message,omitempty"`
}

// ConfigPlan returns the plan of a ConfigSync for printing.
func ConfigPlan(p *plan.Plan) *output.Result {
	list := []PlannedObject{}
	r := &output.Result{Text: func(w io.Writer) { fmt.Fprint(w, output.Clean(p.String())) }}
	for _, items := range [][]plan.Item{p.Items, p.Removals} {
		for _, i := range items {
			list = append(list, PlannedObject{i.Action, i.Type(), i.Namespace, i.Name, i.File, i.Fields, i.Reason, i.Message})
			if i.Action != plan.Unchanged {
				r.Names = append(r.Names, i.Type()+"/"+i.Name)
			}
		}
	}
	r.Data = map[string]any{"ref": p.Ref, "commit": p.Commit, "summary": p.Summary(), "objects": list}
	return r
}

// Orphans returns a table of objects that have the mark of a ConfigSync and are not in its inventory.
func Orphans(ids []manifest.ID) *output.Result {
	list := []PlannedObject{}
	r := &output.Result{Head: []string{"TYPE", "NAMESPACE", "NAME"}}
	for _, id := range ids {
		list = append(list, PlannedObject{Type: id.Type(), Namespace: id.Namespace, Name: id.Name})
		r.Add(id.Type()+"/"+id.Name, id.Type(), id.Namespace, id.Name)
	}
	r.Data = list
	return r
}

// ConfigReady is the condition Ready of a ConfigSync as lists show it.
type ConfigReady struct {
	Ready   string // True, False or Unknown
	Reason  v1alpha1.Reason
	Message string
	Since   time.Time // zero if there is no condition
}

// ConfigState returns the condition Ready of a ConfigSync, or Unknown if it is not about the current spec and request.
func ConfigState(cs *v1alpha1.ConfigSync) ConfigReady {
	c := meta.FindStatusCondition(cs.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case c == nil:
		return ConfigReady{Ready: "Unknown", Message: "no run yet: use 'stoker config apply " + cs.Name + "'"}
	case !desiredref.Current(cs):
		return ConfigReady{Ready: "Unknown", Message: "the spec or the request changed since the last run", Since: c.LastTransitionTime.Time}
	}
	return ConfigReady{string(c.Status), v1alpha1.Reason(c.Reason), c.Message, c.LastTransitionTime.Time}
}

// ConfigSyncs returns a table of ConfigSyncs. It removes the managed fields of list.
func ConfigSyncs(list []*v1alpha1.ConfigSync) *output.Result {
	r := &output.Result{Head: []string{"NAME", "REVISION", "TARGETS", "READY", "STATUS"}}
	items := []any{}
	for _, cs := range list {
		is := ConfigState(cs)
		r.Add(ResourceName(cs), cs.Name, cs.Status.SourceRevisionShort, cs.Status.TargetsReady, is.Ready, output.Shorten(is.Message))
		cs.ManagedFields = nil
		items = append(items, cs)
	}
	r.Data = ListObject(items)
	return r
}

// ConfigSync returns the status of a ConfigSync and of its objects for printing.
func ConfigSync(cs *v1alpha1.ConfigSync) *output.Result {
	r := &output.Result{Data: cs.Status, Head: []string{"TYPE", "NAMESPACE", "NAME", "STATE", "HEALTHY", "WHY"}}
	for _, t := range cs.Status.Targets {
		healthy := ""
		if t.Healthy != nil {
			healthy = map[bool]string{true: "yes", false: "no"}[*t.Healthy]
		}
		why := string(t.Reason)
		if t.Message != "" {
			why = strings.TrimPrefix(why+": "+t.Message, ": ")
		}
		r.Add(t.Type+"/"+t.Name, t.Type, t.Namespace, t.Name, string(t.State), healthy, output.Shorten(why))
	}
	r.Text = func(w io.Writer) {
		is := ConfigState(cs)
		fmt.Fprintf(w, "%s at %s, %s ready, Ready is %s: %s\n", output.OneLine(output.RefAt(cs.Status.SourceRef, cs.Status.SourceRevision)),
			output.OneLine(cs.Status.SourcePath), output.OneLine(cs.Status.TargetsReady), is.Ready, output.OneLine(is.Message))
		output.WriteTable(w, r.Head, r.Rows)
	}
	return r
}
