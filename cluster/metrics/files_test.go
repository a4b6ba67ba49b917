package metrics

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the table of the document")

const (
	alertsFile = "../../api/metrics/alerts.yaml"
	boardFile  = "../../api/metrics/board.json"
	document   = "../../docs/metrics.md"
)

// series are the names of all series, and of which metric they are.
func series() map[string]Description {
	all := map[string]Description{}
	for _, d := range Descriptions() {
		if d.Type != string(histogram) {
			all[d.Name] = d
			continue
		}
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			all[d.Name+suffix] = d
		}
	}
	return all
}

// check sees that Prometheus takes an expression, and that the metrics and labels that it names are there.
func check(t *testing.T, where, text string) {
	t.Helper()
	expression, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		t.Errorf("%s: %v\n%s", where, err, text)
		return
	}
	known, named := series(), 0
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			named++
			d, there := known[n.Name]
			if !there {
				t.Errorf("%s: there is no %s", where, n.Name)
				break
			}
			for _, m := range n.LabelMatchers {
				checkLabel(t, where, d, m.Name)
			}
		case *parser.AggregateExpr: // of one metric, or of several that have the same labels
			parser.Inspect(n.Expr, func(below parser.Node, _ []parser.Node) error {
				if selector, is := below.(*parser.VectorSelector); is {
					for _, label := range n.Grouping {
						checkLabel(t, where, known[selector.Name], label)
					}
				}
				return nil
			})
		case *parser.Call:
			if slices.Contains([]string{"rate", "increase"}, n.Func.Name) {
				counted := n.Args[0].(*parser.MatrixSelector).VectorSelector.(*parser.VectorSelector).Name
				if known[counted].Type == string(gauge) {
					t.Errorf("%s: %s of a gauge: %s", where, n.Func.Name, counted)
				}
			}
		}
		return nil
	})
	if named == 0 {
		t.Errorf("%s names no metric: %s", where, text)
	}
}

func checkLabel(t *testing.T, where string, d Description, label string) {
	t.Helper()
	if label != model.MetricNameLabel && !slices.Contains(d.Labels, label) && (label != model.BucketLabel || d.Type != string(histogram)) {
		t.Errorf("%s: %s has no label %s", where, d.Name, label)
	}
}

var shown = regexp.MustCompile(`\{\{ *\$labels\.(\w+) *\}\}`)

func TestAlerts(t *testing.T) {
	text, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr         string
				For                 model.Duration
				Labels, Annotations map[string]string
			}
		}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			if !regexp.MustCompile(`^Gpreempt[A-Z]\w+$`).MatchString(rule.Alert) || names[rule.Alert] {
				t.Errorf("alert %q: a name that is not ours, or there twice", rule.Alert)
			}
			names[rule.Alert] = true
			check(t, rule.Alert, rule.Expr)
			if !slices.Contains([]string{"info", "warning"}, rule.Labels["severity"]) || rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
				t.Errorf("%s: %v, %v", rule.Alert, rule.Labels, rule.Annotations)
			}
			for _, found := range shown.FindAllStringSubmatch(rule.Annotations["summary"]+rule.Annotations["description"], -1) {
				by := regexp.MustCompile(`by \([^)]*\b` + found[1] + `\b`)
				metric := regexp.MustCompile(Prefix + `\w+`).FindString(rule.Expr)
				if !by.MatchString(rule.Expr) && (strings.Contains(rule.Expr, " by (") || !slices.Contains(series()[metric].Labels, found[1])) {
					t.Errorf("%s shows the label %s, which its expression does not leave", rule.Alert, found[1])
				}
			}
		}
	}
	if len(names) < 10 {
		t.Errorf("%d alerts", len(names))
	}
	tests, err := os.ReadFile("../../api/metrics/alerts_test.yaml") // which promtool runs in cluster/dist
	if err != nil {
		t.Fatal(err)
	}
	for name := range names {
		if !regexp.MustCompile(fmt.Sprintf(`\{alertname=%q, (uuid|instance)="bad"\}`, name)).Match(tests) {
			t.Errorf("no test sees %s fire", name)
		}
	}
}

// variables puts values in place of variables, as Grafana does.
var variables = strings.NewReplacer("$__rate_interval", "5m", "$uuid", "GPU-1", "$namespace", ".*")

var labelValues = regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)

func TestBoard(t *testing.T) {
	text, err := os.ReadFile(boardFile)
	if err != nil {
		t.Fatal(err)
	}
	type position struct{ X, Y, W, H int }
	var board struct {
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
		Panels []struct {
			ID                       int
			Type, Title, Description string
			GridPos                  position
			FieldConfig              struct{ Defaults struct{ Unit string } }
			Targets                  []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	for _, v := range board.Templating.List {
		if v.Type != "query" {
			continue
		}
		if found := labelValues.FindStringSubmatch(v.Definition); found == nil {
			t.Errorf("variable %s: %s", v.Name, v.Definition)
		} else {
			check(t, v.Name, fmt.Sprintf("sum by (%s) (%s)", found[2], found[1]))
		}
	}
	expressions, ids, taken := 0, map[int]bool{}, map[[2]int]string{}
	for _, p := range board.Panels {
		if ids[p.ID] {
			t.Errorf("%s: id %d is there twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, is := taken[[2]int{x, y}]; is || x >= 24 {
					t.Fatalf("%s lies over %q or beyond the edge", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 || p.Description == "" || p.FieldConfig.Defaults.Unit == "" {
			t.Errorf("%s: %+v", p.Title, p)
		}
		for _, target := range p.Targets {
			expressions++
			check(t, p.Title, variables.Replace(target.Expr))
			for _, found := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !strings.Contains(target.Expr, found[1]) {
					t.Errorf("%s: the legend has %s, which is not in %s", p.Title, found[1], target.Expr)
				}
			}
		}
	}
	if expressions < 20 {
		t.Errorf("%d expressions", expressions)
	}
}

const (
	tableBegins = "<!-- metrics -->\n"
	tableEnds   = "<!-- end of metrics -->"
)

// The document's table is that of the descriptions.
func TestDocumentIsCurrent(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), tableBegins)
	_, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		t.Fatalf("%s has no table", document)
	}
	table := &strings.Builder{}
	fmt.Fprintln(table, "| metric | type | unit | labels beside the group's | what |\n|---|---|---|---|---|")
	for _, d := range Descriptions() {
		labels, group := d.Labels, groupLabels()
		if len(labels) >= len(group) {
			labels = labels[len(group):]
		} else {
			labels = []string{"only " + cmp.Or(strings.Join(labels, ", "), "none")}
		}
		fmt.Fprintf(table, "| `%s` | %s | %s | %s | %s |\n", d.Name, d.Type, d.Unit, strings.Join(labels, ", "), d.Help)
	}
	want := before + tableBegins + table.String() + tableEnds + after
	if *update {
		if err := os.WriteFile(document, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(text) != want {
		t.Errorf("%s is not of the metrics as they are; run: go test -C cluster ./metrics -run TestDocument -update", document)
	}
	// Its examples name what is there.
	known := series()
	for _, d := range Descriptions() {
		known[d.Name] = d
	}
	for _, name := range regexp.MustCompile(Prefix+`\w+`).FindAllString(before+after, -1) {
		if _, is := known[name]; !is {
			t.Errorf("%s names %s, which is no metric", document, name)
		}
	}
}
