package render

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template/parse"

	"github.com/tidwall/gjson"
)

// walk visits a node and, if visit returns true, its children.
func walk(n parse.Node, visit func(parse.Node) bool) {
	if n == nil || !visit(n) {
		return
	}
	switch n := n.(type) {
	case *parse.ListNode:
		for _, x := range n.Nodes {
			walk(x, visit)
		}
	case *parse.ActionNode:
		walk(n.Pipe, visit)
	case *parse.PipeNode:
		for _, x := range n.Cmds {
			walk(x, visit)
		}
	case *parse.CommandNode:
		for _, x := range n.Args {
			walk(x, visit)
		}
	case *parse.ChainNode:
		walk(n.Node, visit)
	case *parse.TemplateNode:
		if n.Pipe != nil {
			walk(n.Pipe, visit)
		}
	case *parse.IfNode:
		branch(&n.BranchNode, visit)
	case *parse.WithNode:
		branch(&n.BranchNode, visit)
	case *parse.RangeNode:
		branch(&n.BranchNode, visit)
	}
}

// branch visits the pipe and both lists of a block.
func branch(n *parse.BranchNode, visit func(parse.Node) bool) {
	walk(n.Pipe, visit)
	for _, list := range []*parse.ListNode{n.List, n.ElseList} {
		if list != nil {
			walk(list, visit)
		}
	}
}

// recursive returns the name of a template that calls itself, directly or through others, or "".
func recursive(trees map[string]*parse.ListNode) string {
	const open, done = 1, 2
	state := make(map[string]int)
	var found string
	var enter func(name string)
	enter = func(name string) {
		if trees[name] == nil || state[name] == done || found != "" {
			return
		}
		if state[name] == open {
			found = name
			return
		}
		state[name] = open
		walk(trees[name], func(n parse.Node) bool {
			if call, ok := n.(*parse.TemplateNode); ok {
				enter(call.Name)
			}
			return true
		})
		state[name] = done
	}
	for _, name := range slices.Sorted(maps.Keys(trees)) {
		enter(name)
	}
	return found
}

// uses reports whether a block may use one of the facts. Using a dot or $ as a whole may use all of them. A dot or $
// that is only passed to another template does not count, because that template is checked itself.
func uses(list *parse.ListNode, facts []string) (used bool) {
	names := func(idents []string) bool {
		return slices.ContainsFunc(idents, func(name string) bool { return slices.Contains(facts, name) })
	}
	walk(list, func(n parse.Node) bool {
		switch n := n.(type) {
		case *parse.DotNode:
			used = true
		case *parse.FieldNode:
			used = used || names(n.Ident[:1])
		case *parse.VariableNode:
			whole := len(n.Ident) == 1 && n.Ident[0] == "$"
			used = used || whole || len(n.Ident) > 1 && names(n.Ident[1:2])
		case *parse.ChainNode:
			used = used || names(n.Field)
		case *parse.TemplateNode:
			return n.Pipe != nil && !isWholeDot(n.Pipe)
		}
		return !used
	})
	return used
}

// isWholeDot reports whether a pipe is only the dot or $.
func isWholeDot(p *parse.PipeNode) bool {
	if len(p.Cmds) != 1 || len(p.Cmds[0].Args) != 1 || len(p.Decl) > 0 {
		return false
	}
	switch n := p.Cmds[0].Args[0].(type) {
	case *parse.DotNode:
		return true
	case *parse.VariableNode:
		return len(n.Ident) == 1 && n.Ident[0] == "$"
	}
	return false
}

// hasLongLiteral reports whether a block has a literal longer than maxValue.
func hasLongLiteral(list *parse.ListNode) (found bool) {
	walk(list, func(n parse.Node) bool {
		if s, ok := n.(*parse.StringNode); ok && len(s.Text) > maxValue {
			found = true
		}
		return !found
	})
	return found
}

// calls reports whether a block calls a function.
func calls(list *parse.ListNode, function string) (found bool) {
	walk(list, func(n parse.Node) bool {
		if f, ok := n.(*parse.IdentifierNode); ok && f.Ident == function {
			found = true
		}
		return !found
	})
	return found
}

// Part is the text between two slashes of a rendered template. Slashes from actions do not separate parts.
type Part struct {
	Text string
	// Generated reports that an action wrote to the part, or that a block in it produced nothing: the part may be empty by
	// accident.
	Generated bool
}

// Marks around the output of actions and blocks while a text is split into parts.
const (
	actionBegins, actionEnds = '\x02', '\x03'
	blockBegins, blockEnds   = '\x0e', '\x0f'
	marks                    = "\x02\x03\x0e\x0f"
)

// Parts renders a short template, as Text does, and splits the result at the slashes of the template's own text. A
// result with control characters is one part; no path has any.
func Parts(name, text string, f *Facts) ([]Part, error) {
	rendered, _, err := Text(name, text, f)
	if err != nil || !strings.Contains(text, "{{") || strings.ContainsAny(rendered, marks) {
		return []Part{{Text: rendered}}, err
	}
	t, err := Parse(name, text)
	if err != nil {
		return nil, err
	}
	for _, part := range t.tmpl.Templates() {
		if part.Tree != nil && part.Root != nil {
			mark(part.Root)
		}
	}
	marked, err := t.Execute(f, maxOutput)
	if err != nil {
		return nil, err
	}
	var parts []Part
	var current strings.Builder
	generated, depth, before := false, 0, rune(0)
	end := func() {
		parts = append(parts, Part{current.String(), generated})
		generated = false
		current.Reset()
	}
	for _, c := range string(marked) {
		switch {
		case c == actionBegins:
			depth++
			generated = true
		case c == actionEnds:
			depth--
		case c == blockEnds:
			generated = generated || before == blockBegins
		case c == blockBegins:
		case c == '/' && depth == 0:
			end()
		default:
			current.WriteRune(c)
		}
		before = c
	}
	end()
	return parts, nil
}

// mark puts marks around the nodes that produce output.
func mark(list *parse.ListNode) {
	if list == nil {
		return
	}
	text := func(c rune) parse.Node {
		return &parse.TextNode{NodeType: parse.NodeText, Pos: list.Pos, Text: []byte(string(c))}
	}
	var nodes []parse.Node
	block := func(n parse.Node, lists ...*parse.ListNode) {
		for _, inner := range lists {
			mark(inner)
		}
		nodes = append(nodes, text(blockBegins), n, text(blockEnds))
	}
	for _, n := range list.Nodes {
		switch n := n.(type) {
		case *parse.ActionNode:
			if len(n.Pipe.Decl) > 0 || calls(&parse.ListNode{NodeType: parse.NodeList, Nodes: []parse.Node{n}}, step) { // produces no output
				nodes = append(nodes, n)
				continue
			}
			nodes = append(nodes, text(actionBegins), n, text(actionEnds))
		case *parse.IfNode:
			block(n, n.List, n.ElseList)
		case *parse.WithNode:
			block(n, n.List, n.ElseList)
		case *parse.RangeNode:
			block(n, n.List, n.ElseList)
		case *parse.TemplateNode:
			block(n)
		default:
			nodes = append(nodes, n)
		}
	}
	list.Nodes = nodes
}

// indent is one level of a gateway's indentation.
const indent = "  "

// add inserts a missing member or element into an existing container, in the layout of its siblings.
func (e *Edit) add(doc string, into gjson.Result, path []segment) (string, error) {
	for i, s := range path[1:] {
		if s.index >= 0 {
			return "", fmt.Errorf("there is no list %q for element %d; write :%d if it is a name", path[i].name, s.index, s.index)
		}
	}
	l := layoutOf(doc, into)
	value := e.newValue()
	for depth, s := range slices.Backward(path[1:]) {
		value = "{" + l.space(depth+1) + quote(s.name) + l.colon + value + l.space(depth) + "}"
	}
	if into.IsObject() {
		value = quote(path[0].name) + l.colon + value
	}
	if l.empty {
		closing := into.Index + len(into.Raw) - 1
		return doc[:into.Index+1] + l.before + value + l.outer + doc[closing:], nil
	}
	return doc[:l.end] + "," + l.before + value + doc[l.end:], nil
}

// layout is the formatting of a container's members.
type layout struct {
	before string // white space before a member
	outer  string // white space before the closing bracket of an empty container once it is filled
	colon  string
	end    int // end of the last member
	empty  bool
}

// space returns the white space before a member that is nested deeper.
func (l *layout) space(deeper int) string {
	if !strings.Contains(l.before, "\n") {
		return ""
	}
	return l.before + strings.Repeat(indent, deeper)
}

// layoutOf returns the layout of the members of into.
func layoutOf(doc string, into gjson.Result) layout {
	l := layout{empty: true, colon: ":"}
	if strings.Contains(doc, "\n") {
		l.colon = ": "
	}
	into.ForEach(func(key, value gjson.Result) bool {
		start := value.Index
		if into.IsObject() {
			start = key.Index
			l.colon = doc[key.Index+len(key.Raw) : value.Index]
		}
		before := strings.TrimRight(doc[:start], " \t\r\n")
		l.before, l.end, l.empty = doc[len(before):start], value.Index+len(value.Raw), false
		return true
	})
	if l.empty && strings.Contains(doc, "\n") {
		line := doc[strings.LastIndexByte(doc[:into.Index], '\n')+1 : into.Index]
		white := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
		l.outer = "\n" + white
		l.before = l.outer + indent
	}
	return l
}
