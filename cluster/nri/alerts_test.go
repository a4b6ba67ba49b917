package nri

import (
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/rs/zerolog"
	"go.yaml.in/yaml/v3"
)

// The alerts of the plugin name metrics that it has, in expressions that Prometheus takes.
func TestAlerts(t *testing.T) {
	text, err := os.ReadFile("../../charts/gpreempt/files/nri-alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	New(&Config{}, zerolog.Nop()).Register(registry)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	there, named := map[string]bool{}, 0
	for _, f := range families {
		there[f.GetName()] = true
	}
	for _, rule := range file.Groups[0].Rules {
		expression, err := parser.NewParser(parser.Options{}).ParseExpr(rule.Expr)
		if err != nil {
			t.Fatalf("%s: %v", rule.Alert, err)
		}
		parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
			if selector, is := node.(*parser.VectorSelector); is {
				if named++; !there[selector.Name] {
					t.Errorf("%s: there is no %s", rule.Alert, selector.Name)
				}
			}
			return nil
		})
	}
	if named < 3 {
		t.Errorf("the alerts name %d metrics", named)
	}
}
