package main

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// jsonKeys calls see with each value of a type by its path, and its type in JSON.
func jsonKeys(t *testing.T, path string, of reflect.Type, see func(path, value string)) {
	t.Helper()
	switch kind := of.Kind(); kind {
	case reflect.Pointer:
		jsonKeys(t, path, of.Elem(), see)
	case reflect.Slice:
		jsonKeys(t, path+"[]", of.Elem(), see)
	case reflect.Map:
		jsonKeys(t, path+".*", of.Elem(), see)
	case reflect.Array:
		see(path, "list of integers")
	case reflect.Struct:
		for i := range of.NumField() {
			field := of.Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			switch {
			case name == "-" || !field.IsExported():
			case name != "":
				jsonKeys(t, path+"."+name, field.Type, see)
			case field.Anonymous:
				jsonKeys(t, path, field.Type, see)
			default:
				t.Errorf("%s has a field %s without a key", path, field.Name)
			}
		}
	case reflect.String:
		see(path, "string")
	case reflect.Bool:
		see(path, "true or false")
	case reflect.Float64:
		see(path, "number")
	default:
		if kind < reflect.Int || kind > reflect.Uint64 {
			t.Errorf("%s: %s", path, kind)
		}
		see(path, "integer")
	}
}

// docs/top-json.md has a row for each key of gpreempt top --json, and for no other.
func TestJSONIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/top-json.md")
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([^|]+) \\| [^|]+ \\|$").FindAllStringSubmatch(string(text), -1) {
		said[row[1]] = row[2]
	}
	there := map[string]bool{}
	jsonKeys(t, "", reflect.TypeFor[sample](), func(path, value string) {
		path = strings.TrimPrefix(path, ".")
		there[path] = true
		if said[path] != value {
			t.Errorf("docs/top-json.md: %s is %q, must be %q", path, said[path], value)
		}
	})
	for path := range said {
		if !there[path] {
			t.Errorf("docs/top-json.md has %s, which the program does not print", path)
		}
	}
	if len(there) < 100 {
		t.Errorf("%d keys: the walk is wrong", len(there))
	}
}
