package render

import (
	"strings"
	"text/template/parse"
)

// Part is the text between two slashes of a rendered template. Slashes from actions do not separate parts.
type Part struct {
	Text string
	// Generated reports that an action begins in the part, or that a block in it produced nothing: the part may be empty by
	// accident.
	Generated bool
}

// Marks around the output of actions and blocks while a text is split into parts.
const (
	actionBegins, actionEnds = '\x02', '\x03'
	blockBegins, blockEnds   = '\x0e', '\x0f'
	marks                    = "\x02\x03\x0e\x0f"
)

// Parts renders a short template, as Text does, and splits the result at the slashes of the template's own text. A result
// that has one of the marks itself is one part. ParsePath rejects it, because the marks are control characters.
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
