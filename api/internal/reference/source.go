package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
)

// source has the declarations from which docs/reference/gatewaysync.md and configsync.md are generated.
type source struct {
	structs     map[string]structType
	enums       map[string][]string // values of a string type
	stringTypes map[string]bool     // the types whose underlying type is string
	groups      []group
}

type structType struct {
	doc    string
	fields []structField
	inline []string // embedded struct types, whose fields are fields of this one
}

type structField struct {
	name    string // as in YAML
	typ     ast.Expr
	doc     string
	markers map[string]string
}

// group is a const block: its comment, and those of its string constants that have a comment of their own. The tables of
// annotations are made from groups.
type group struct {
	doc    string
	values []constant
}

type constant struct{ value, doc string }

// parse reads the Go files of a folder, except tests and generated files.
func parse(dir string) (*source, error) {
	s := &source{structs: map[string]structType{}, enums: map[string][]string{}, stringTypes: map[string]bool{}}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(filepath.Base(name), "zz_") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(set, name, text, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			if err := s.add(d); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return s, nil
}

func (s *source) add(d ast.Decl) error {
	decl, ok := d.(*ast.GenDecl)
	if !ok {
		return nil
	}
	switch decl.Tok {
	case token.TYPE:
		for _, spec := range decl.Specs {
			if err := s.addType(spec.(*ast.TypeSpec), decl.Doc); err != nil {
				return err
			}
		}
	case token.CONST:
		s.addConstants(decl)
	}
	return nil
}

func (s *source) addType(spec *ast.TypeSpec, comment *ast.CommentGroup) error {
	doc, markers := splitComment(comment)
	switch t := spec.Type.(type) {
	case *ast.Ident:
		if t.Name == "string" {
			s.stringTypes[spec.Name.Name] = true
		}
		if values := markers["kubebuilder:validation:Enum"]; values != "" {
			s.enums[spec.Name.Name] = strings.Split(values, ";")
		}
	case *ast.StructType:
		st := structType{doc: doc}
		for _, f := range t.Fields.List {
			if f.Tag == nil {
				continue
			}
			tag, err := strconv.Unquote(f.Tag.Value)
			if err != nil {
				return err
			}
			name, options, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
			if t, ok := f.Type.(*ast.Ident); ok && options == "inline" {
				st.inline = append(st.inline, t.Name)
			}
			if name == "" || name == "-" || len(f.Names) == 0 {
				continue
			}
			fieldDoc, fieldMarkers := splitComment(f.Doc)
			st.fields = append(st.fields, structField{name, f.Type, fieldDoc, fieldMarkers})
		}
		s.structs[spec.Name.Name] = st
	}
	return nil
}

func (s *source) addConstants(decl *ast.GenDecl) {
	doc, _ := splitComment(decl.Doc)
	g := group{doc: doc}
	for _, spec := range decl.Specs {
		v := spec.(*ast.ValueSpec)
		if v.Doc == nil || len(v.Values) != 1 {
			continue
		}
		if literal, ok := v.Values[0].(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if value, err := strconv.Unquote(literal.Value); err == nil {
				valueDoc, _ := splitComment(v.Doc)
				_, valueDoc, _ = strings.Cut(valueDoc, " ") // without the constant's own name
				g.values = append(g.values, constant{value, valueDoc})
			}
		}
	}
	if len(g.values) > 0 {
		s.groups = append(s.groups, g)
	}
}

// splitComment returns the text of a comment, as one line, and its markers.
func splitComment(comment *ast.CommentGroup) (text string, markers map[string]string) {
	markers = map[string]string{}
	if comment == nil {
		return "", markers
	}
	var lines []string
	for _, c := range comment.List {
		line := strings.TrimSpace(strings.TrimPrefix(c.Text, "//"))
		if marker, ok := strings.CutPrefix(line, "+"); ok {
			name, value, _ := strings.Cut(marker, "=")
			markers[name] = strings.Trim(value, "`")
		} else if line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, " "), markers
}
