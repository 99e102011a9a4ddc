// Package render turns the bytes that git has for a file into the bytes that the gateway gets: it executes Go templates
// over the facts of a gateway, and patches single JSON values. It is pure and bounded. Its input comes from a
// repository that may be hostile, so no template can run long, take much memory, or learn anything but the facts.
package render

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Bounds of one template (F11 of docs/internals/threats.md). Templates written in good faith stay far below them.
const (
	// maxActions bounds the number of {{…}} in one file, and with it the nesting of blocks.
	maxActions = 10_000
	// maxSteps bounds the executed nodes of the parsed template.
	maxSteps = 1_000_000
	// maxOutput bounds the bytes of all values that functions make, maxValue those of one value, of a literal and of a field.
	maxOutput = 32 << 20
	maxValue  = 64 << 10
)

// Template is a parsed template. It must not be executed by several goroutines at once.
type Template struct {
	name     string
	tmpl     *template.Template
	meter    *meter
	volatile bool
	indexed  bool // see indexes
}

// IsTemplate reports whether text contains a template action. Any other text renders to itself.
func IsTemplate(text []byte) bool { return bytes.Contains(text, []byte("{{")) }

// Parse parses a template. The name of a file or a field is for the errors, which are TemplateFailed or LimitExceeded.
func Parse(name, text string) (*Template, error) {
	if n := strings.Count(text, "{{"); n > maxActions {
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "%s has %d template actions; at most %d are allowed in one file", name, n, maxActions)
	}
	t := &Template{name: name, meter: &meter{name: name}}
	var err error
	t.tmpl, err = template.New(name).Option("missingkey=error").Funcs(t.meter.functions()).Parse(text)
	if err != nil {
		return nil, failure.New(v1alpha1.ReasonTemplateFailed, "%w (write {{ in a text that is not a template as {{\"{{\"}})", err)
	}
	trees := make(map[string]*parse.ListNode)
	for _, part := range t.tmpl.Templates() {
		if part.Tree != nil && part.Root != nil {
			trees[part.Name()] = part.Root
		}
	}
	if caller := recursive(trees); caller != "" {
		return nil, failure.New(v1alpha1.ReasonTemplateFailed, "%s: the template %q calls itself, which is not allowed", name, caller)
	}
	for _, root := range trees {
		if calls(root, step) {
			return nil, failure.New(v1alpha1.ReasonTemplateFailed, "%s: there is no function %s", name, step)
		}
		if hasLongLiteral(root) {
			return nil, failure.New(v1alpha1.ReasonLimitExceeded, "%s: a text within {{ }} has more than %d bytes", name, maxValue)
		}
		t.volatile = t.volatile || uses(root, commitFacts)
		t.indexed = t.indexed || indexes(root, podFacts)
		instrument(root)
	}
	return t, nil
}

// Volatile reports whether the result can change with the commit alone, because the template uses the ref, the commit,
// or all facts at once. In doubt it returns true.
func (t *Template) Volatile() bool { return t.volatile }

// Execute renders the template. More than limit bytes are LimitExceeded. Any other error is TemplateFailed with the
// line and the reason, and also ErrUnread if a fact is unknown.
func (t *Template) Execute(f *Facts, limit int64) (out []byte, err error) {
	if f.Unlabelled && t.indexed {
		return nil, failure.New(v1alpha1.ReasonTemplateFailed, "%s: %w", t.name, ErrUnread)
	}
	return t.execute(f.data(), limit)
}

// ExecuteValues is Execute for a caller with facts of its own. The values must be plain, as those of a Facts are.
func (t *Template) ExecuteValues(values map[string]any, limit int64) ([]byte, error) {
	return t.execute(values, limit)
}

func (t *Template) execute(data any, limit int64) (out []byte, err error) {
	t.meter.steps, t.meter.output = 0, 0
	b := &output{name: t.name, left: limit, limit: limit}
	defer func() {
		if r := recover(); r != nil { // text/template may let run-time panics through; none is known
			out, err = nil, failure.New(v1alpha1.ReasonTemplateFailed, "%s: the template cannot be executed: %v", t.name, r)
		}
	}()
	if err := t.tmpl.Execute(b, data); err != nil {
		if own, ok := errors.AsType[*failure.Error](err); ok {
			return nil, own
		}
		return nil, failure.New(v1alpha1.ReasonTemplateFailed, "%w", err)
	}
	return b.Bytes(), nil
}

// Steps returns the cost of the last execution. A caller that renders many templates bounds the sum.
func (t *Template) Steps() int { return t.meter.steps }

// Text renders a short template, the value of a field. volatile is that of Template.Volatile.
func Text(name, text string, f *Facts) (out string, volatile bool, err error) {
	if !strings.Contains(text, "{{") {
		return text, false, nil
	}
	t, err := Parse(name, text)
	if err != nil {
		return "", false, err
	}
	b, err := t.Execute(f, maxValue)
	return string(b), t.volatile, err
}

// output is a buffer of bounded size.
type output struct {
	bytes.Buffer
	name        string
	left, limit int64
}

func (o *output) Write(p []byte) (int, error) {
	if o.left -= int64(len(p)); o.left < 0 {
		return 0, failure.New(v1alpha1.ReasonLimitExceeded, "%s is larger than %d bytes when it is rendered", o.name, o.limit)
	}
	return o.Buffer.Write(p)
}

// meter measures the cost of one execution.
type meter struct {
	name          string
	steps, output int // so far; output is in bytes
}

// step charges for a block. Every block calls it first.
func (m *meter) step(weight int) (string, error) {
	if m.steps += weight; m.steps > maxSteps {
		return "", failure.New(v1alpha1.ReasonLimitExceeded, "%s: the template does not finish within %d steps", m.name, maxSteps)
	}
	return "", nil
}

// charge charges for a value of n bytes. A function whose value can be many times as long as its arguments calls it before it makes
// the value.
func (m *meter) charge(n int) error {
	if n > maxValue {
		return failure.New(v1alpha1.ReasonLimitExceeded, "%s: a value has %d bytes; at most %d are allowed", m.name, n, maxValue)
	}
	if m.output += n; m.output > maxOutput {
		return failure.New(v1alpha1.ReasonLimitExceeded, "%s: the template makes more than %d bytes of values", m.name, maxOutput)
	}
	return nil
}

// step is the name of the function that instrument inserts. Templates must not call it.
const step = "_step"

// instrument inserts a step before every block, weighted by the nodes of the block without nested blocks, which have
// their own step. This bounds an execution however its loops and calls are nested.
func instrument(list *parse.ListNode) {
	weight := 1
	for _, n := range list.Nodes {
		walk(n, func(n parse.Node) bool {
			if block, ok := n.(*parse.ListNode); ok {
				instrument(block)
				return false
			}
			weight++
			return true
		})
	}
	number := &parse.NumberNode{NodeType: parse.NodeNumber, Pos: list.Pos, IsInt: true, Int64: int64(weight), Text: fmt.Sprint(weight)}
	command := &parse.CommandNode{NodeType: parse.NodeCommand, Pos: list.Pos, Args: []parse.Node{parse.NewIdentifier(step).SetPos(list.Pos), number}}
	pipe := &parse.PipeNode{NodeType: parse.NodePipe, Pos: list.Pos, Cmds: []*parse.CommandNode{command}}
	action := &parse.ActionNode{NodeType: parse.NodeAction, Pos: list.Pos, Pipe: pipe}
	list.Nodes = append([]parse.Node{action}, list.Nodes...)
}

// Facts are the values that templates can use.
type Facts struct {
	GatewayName string
	PodName     string
	// PodOrdinal is the index of a StatefulSet's pod; 0 for any other.
	PodOrdinal     int
	Namespace      string
	CRName         string
	Labels         map[string]string
	DeploymentMode string
	TagProvider    string
	// Vars are also available at the top level, except under the names of other facts.
	Vars map[string]string
	// Ref is the desired ref as requested, Commit the full id that it resolved to.
	Ref, Commit string
	// Unlabelled reports that the pod's labels and annotations are unknown. A template that uses Labels, PodOrdinal or DeploymentMode
	// then fails with ErrUnread. An agent always knows them; a command that renders without a pod does not.
	Unlabelled bool
}

// ErrUnread reports that a template uses a fact that is not known.
var ErrUnread = errors.New("the labels and annotations of the pod are not known")

// unlabelled are the facts of a pod whose labels are unknown. text/template looks for a method before a map key, so these
// methods shadow the facts.
type unlabelled map[string]any

// Labels fails a template that uses them.
func (unlabelled) Labels() (map[string]string, error) { return nil, ErrUnread }

// PodOrdinal fails because a label tells the ordinal.
func (unlabelled) PodOrdinal() (int, error) { return 0, ErrUnread }

// DeploymentMode fails because an annotation sets it and it has no default. (The tag provider has one.)
func (unlabelled) DeploymentMode() (string, error) { return "", ErrUnread }

// podFacts are the methods of unlabelled. The function index does not call methods.
var podFacts = []string{"Labels", "PodOrdinal", "DeploymentMode"}

// commitFacts are the facts that can change from one sync to the next under the same rules.
var commitFacts = []string{"Ref", "Commit"}

// data returns the value that a template is executed on. Its values are plain and have no methods, and the methods of unlabelled only
// return ErrUnread.
func (f *Facts) data() any {
	if f.Unlabelled {
		return unlabelled(f.values())
	}
	return f.values()
}

func (f *Facts) values() map[string]any {
	d := make(map[string]any, len(f.Vars)+11)
	for name, v := range f.Vars {
		d[name] = v
	}
	maps.Copy(d, map[string]any{
		"GatewayName": f.GatewayName, "PodName": f.PodName, "PodOrdinal": f.PodOrdinal, "Namespace": f.Namespace,
		"CRName": f.CRName, "Labels": f.Labels, "DeploymentMode": f.DeploymentMode, "TagProvider": f.TagProvider,
		"Vars": f.Vars, "Ref": f.Ref, "Commit": f.Commit,
	})
	return d
}

// Fingerprint returns a hash of the facts that rendered bytes can depend on, without Ref and Commit.
func (f *Facts) Fingerprint() string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %d %q %q %q %q\n", f.GatewayName, f.PodName, f.PodOrdinal, f.Namespace, f.CRName, f.DeploymentMode, f.TagProvider)
	for _, m := range []map[string]string{f.Labels, f.Vars} {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(h, "%q=%q ", key, m[key])
		}
		fmt.Fprintln(h)
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}
