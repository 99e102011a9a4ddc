// Package fields proves that every field of a spec has an effect. It walks the Go types of the specs, changes one field at a time in a
// complete object, and compares what the programs build from both objects: requests, plans, files, patches. A field without a row in the
// tables of the tests is an error.
package fields

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Leaves returns the paths of the fields of a spec that have no fields of the project's own, as users write them. A list of objects adds [],
// and a map of objects {}.
func Leaves(t reflect.Type, at string) []string {
	switch t.Kind() {
	case reflect.Pointer:
		return Leaves(t.Elem(), at)
	case reflect.Slice:
		if isObject(t.Elem()) {
			return Leaves(t.Elem(), at+"[]")
		}
	case reflect.Map:
		if isObject(t.Elem()) {
			return Leaves(t.Elem(), at+"{}")
		}
	case reflect.Struct:
		if !isObject(t) {
			break
		}
		var all []string
		for f := range t.Fields() {
			all = append(all, Leaves(f.Type, join(at, nameOf(f)))...)
		}
		return all
	}
	return []string{at}
}

// isObject reports whether a type is a struct of the API, and not one of Kubernetes.
func isObject(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && strings.HasSuffix(t.PkgPath(), "/api/v1alpha1")
}

// nameOf returns the name of a field in JSON; "" if its fields are inline.
func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func join(at, name string) string {
	if at == "" || name == "" {
		return at + name
	}
	return at + "." + name
}

// Set sets the leaf at a path below v to a value, which is converted as JSON, or to another value than it has if to is nil. It takes the first
// element of a list, and the first key of a map. It fails if an object on the way is absent, because its presence would be a second change.
func Set(v reflect.Value, path string, to any) error {
	switch {
	case path == "":
		return assign(v, to)
	case (v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && (v.IsNil() || v.Kind() != reflect.Pointer && v.Len() == 0):
		return fmt.Errorf("the object lacks what contains %s", path)
	}
	switch v.Kind() {
	case reflect.Pointer:
		return Set(v.Elem(), path, to)
	case reflect.Slice:
		return Set(v.Index(0), after(path, "[]"), to)
	case reflect.Map:
		key := slices.MinFunc(v.MapKeys(), func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		entry := reflect.New(v.Type().Elem()).Elem()
		entry.Set(v.MapIndex(key))
		err := Set(entry, after(path, "{}"), to)
		v.SetMapIndex(key, entry)
		return err
	}
	for f, field := range v.Fields() {
		name := nameOf(f)
		if name == "" && Set(field, path, to) == nil {
			return nil
		}
		if name != "" && (path == name || strings.HasPrefix(path, name+".") || strings.HasPrefix(path, name+"[") || strings.HasPrefix(path, name+"{")) {
			return Set(field, after(path, name), to)
		}
	}
	return fmt.Errorf("%s has no field %s", v.Type(), path)
}

func after(path, first string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, first), ".")
}

func assign(v reflect.Value, to any) error {
	if to == nil {
		changed, err := other(v)
		if err == nil {
			v.Set(changed)
		}
		return err
	}
	text, err := json.Marshal(to)
	if err != nil {
		return err
	}
	fresh := reflect.New(v.Type())
	if err := json.Unmarshal(text, fresh.Interface()); err != nil {
		return err
	}
	v.Set(fresh.Elem())
	return nil
}

// other returns another value than v. The text of a string, of the elements of a list and of the values of a map gets longer.
func other(v reflect.Value) (reflect.Value, error) {
	changed := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.String:
		changed.SetString(v.String() + "2")
	case reflect.Bool:
		changed.SetBool(!v.Bool())
	case reflect.Int32, reflect.Int64:
		changed.SetInt(v.Int() + 1)
	case reflect.Pointer:
		value := reflect.New(v.Type().Elem())
		if !v.IsNil() {
			value.Elem().Set(v.Elem())
		}
		to, err := other(value.Elem())
		if err != nil {
			return v, err
		}
		value.Elem().Set(to)
		changed.Set(value)
	case reflect.Slice:
		for i := range v.Len() {
			to, err := other(v.Index(i))
			if err != nil {
				return v, err
			}
			changed = reflect.Append(changed, to)
		}
	case reflect.Map:
		changed = reflect.MakeMap(v.Type())
		for key, value := range v.Seq2() {
			to, err := other(value)
			if err != nil {
				return v, err
			}
			changed.SetMapIndex(key, to)
		}
	default:
		return v, fmt.Errorf("name another value of a %s in the table", v.Type())
	}
	return changed, nil
}
