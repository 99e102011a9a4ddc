package render

import (
	"maps"
	"slices"
	"text/template/parse"
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

// indexes reports whether a block may use one of the facts with the function index, as in {{index . "Labels"}}.
func indexes(list *parse.ListNode, facts []string) (found bool) {
	walk(list, func(n parse.Node) bool {
		if pipe, ok := n.(*parse.PipeNode); ok && calls(pipe, "index") {
			walk(pipe, func(n parse.Node) bool {
				s, ok := n.(*parse.StringNode)
				found = found || ok && slices.Contains(facts, s.Text)
				return !found
			})
		}
		return !found
	})
	return found
}

// calls reports whether a node calls a function.
func calls(node parse.Node, function string) (found bool) {
	walk(node, func(n parse.Node) bool {
		if f, ok := n.(*parse.IdentifierNode); ok && f.Ident == function {
			found = true
		}
		return !found
	})
	return found
}
