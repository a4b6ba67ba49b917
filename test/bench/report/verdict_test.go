package report

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Parts of targets that a reader can compare with numbers of the same row.
var (
	pairOf  = regexp.MustCompile(`^(\S+ [um]s)(?: / [^/]*)* / (\S+ [um]s) \(([\d.]+)\)(?:; ([\d.]+))?: (.*)$`)
	valueOf = regexp.MustCompile(`^(?:\d+ of \d+: )?(-?[\d.e+]+)(?: to (-?[\d.e+]+))? \D.*?: (reached|\*\*missed\*\*)`)
	limitOf = regexp.MustCompile(`^(?:[\w.: ]* )?(<=|>=) ([\d.]+)(?: |$)`)
	times   = regexp.MustCompile(`\(([\d.]+)\)`)
	number  = regexp.MustCompile(`^-?[\d.]+`)
)

func parsed(t *testing.T, text string) float64 {
	t.Helper()
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func inUs(t *testing.T, text string) float64 {
	value, unit, _ := strings.Cut(text, " ")
	if unit == "ms" {
		return 1000 * parsed(t, value)
	}
	return parsed(t, value)
}

// judged compares a verdict with what the parts of a target say: true, false, or nothing where the row does not tell.
func judged(t *testing.T, where, verdict string, parts []*bool) {
	t.Helper()
	all, unknown := true, false
	for _, holds := range parts {
		unknown = unknown || holds == nil
		all = all && (holds == nil || *holds)
	}
	switch {
	case strings.HasPrefix(verdict, "reached") && !all:
		t.Errorf("says that it is reached: %s", where)
	case strings.HasPrefix(verdict, "**missed**") && all && !unknown:
		t.Errorf("says that it is missed: %s", where)
	}
}

// half of the last digit of a number: what rounding may have added or taken.
func half(text string) float64 {
	_, digits, _ := strings.Cut(text, ".")
	return math.Pow10(-len(digits)) / 2
}

// within says whether a number that was rounded to so much keeps a limit; nothing where either way is possible.
func within(value float64, operator string, limit, rounded float64) *bool {
	if operator == ">=" {
		value, limit = -value, -limit
	}
	if value <= limit+rounded && value >= limit-rounded {
		return nil
	}
	holds := value < limit
	return &holds
}

// Whether a target is reached follows from the numbers of the row that says so.
func TestVerdictsFollowFromTheRow(t *testing.T) {
	judgements := 0
	for _, document := range Documents {
		text, err := os.ReadFile(filepath.Join(root, document))
		if err != nil {
			t.Fatal(err)
		}
		var header []string
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "|") {
				header = nil
				continue
			}
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			if header == nil {
				header = cells
				continue
			}
			if len(cells) == len(header) && header[len(header)-1] == "target" {
				judgements += checkRow(t, header, cells)
			}
		}
	}
	if judgements < 60 {
		t.Errorf("only %d verdicts were looked at: an expression is wrong", judgements)
	}
}

// checkRow compares the verdicts of a row, and says how many it has.
func checkRow(t *testing.T, header, cells []string) (verdicts int) {
	t.Helper()
	where, last := strings.Join(cells, " | "), cells[len(cells)-1]
	switch {
	case strings.HasPrefix(header[0], "LC p99: alone"):
		for _, cell := range cells[1 : len(cells)-1] {
			f := pairOf.FindStringSubmatch(cell)
			if f == nil {
				continue
			}
			verdicts++
			var parts []*bool
			for part := range strings.SplitSeq(last, ", ") {
				limit := limitOf.FindStringSubmatch(part)
				switch {
				case strings.HasPrefix(part, "lc p99 <= alone p99 + "):
					more := parsed(t, strings.TrimSuffix(strings.TrimPrefix(part, "lc p99 <= alone p99 + "), " us"))
					parts = append(parts, within(inUs(t, f[2])-inUs(t, f[1]), "<=", more, 1))
				case limit != nil && strings.HasPrefix(part, "lc p99 "):
					parts = append(parts, within(parsed(t, f[3]), limit[1], parsed(t, limit[2]), .005))
				case limit != nil && strings.HasPrefix(part, "BE ") && f[4] != "":
					parts = append(parts, within(parsed(t, f[4]), limit[1], parsed(t, limit[2]), .0005))
				default:
					parts = append(parts, nil)
				}
			}
			judged(t, where, f[5], parts)
		}
	case header[0] == "measured":
		for _, cell := range cells[1 : len(cells)-1] {
			f := valueOf.FindStringSubmatch(cell)
			if f == nil {
				continue
			}
			verdicts++
			var parts []*bool
			for part := range strings.SplitSeq(last, ", ") {
				limit := limitOf.FindStringSubmatch(part)
				if limit == nil {
					parts = append(parts, nil)
					continue
				}
				for _, value := range f[1:3] {
					if value != "" && len(parts) == 0 || value != "" && limit[1] == ">=" && !strings.Contains(part, "changes") {
						parts = append(parts, within(parsed(t, value), limit[1], parsed(t, limit[2]), 5e-4*parsed(t, limit[2])))
					}
				}
			}
			judged(t, where, f[3], parts)
		}
	case len(header) > 5 && header[1] == "TPOT p50":
		verdict, target, _ := strings.Cut(last, ": ")
		held, be := number.FindString(cells[4]), number.FindString(cells[5])
		var parts []*bool
		for part := range strings.SplitSeq(target, ", ") {
			limit := limitOf.FindStringSubmatch(part)
			tpot, ttft := times.FindStringSubmatch(cells[2]), times.FindStringSubmatch(cells[3])
			switch {
			case limit == nil:
				parts = append(parts, nil)
			case strings.HasPrefix(part, "TTFT and TPOT p99") && tpot != nil && ttft != nil:
				parts = append(parts, within(parsed(t, tpot[1]), limit[1], parsed(t, limit[2]), half(tpot[1])), within(parsed(t, ttft[1]), limit[1], parsed(t, limit[2]), half(ttft[1])))
			case strings.HasPrefix(part, "TPOT held") && held != "":
				parts = append(parts, within(parsed(t, held), limit[1], parsed(t, limit[2]), .05))
			case strings.HasPrefix(part, "BE ") && be != "":
				parts = append(parts, within(parsed(t, be), limit[1], parsed(t, limit[2]), half(be)))
			default:
				parts = append(parts, nil)
			}
		}
		if target != "" {
			verdicts++
			judged(t, where, verdict, parts)
		}
	case header[0] == "case" && header[1] == "system":
		verdict, target, _ := strings.Cut(last, ": ")
		var parts []*bool
		for part := range strings.SplitSeq(target, ", ") {
			limit, ratio := limitOf.FindStringSubmatch(part), times.FindStringSubmatch(cells[5])
			switch {
			case limit != nil && strings.HasPrefix(part, "lc p99.9 "):
				if ratio != nil {
					parts = append(parts, within(parsed(t, ratio[1]), limit[1], parsed(t, limit[2]), .005))
				}
			case strings.HasPrefix(part, "max <= ") && limit != nil:
				parts = append(parts, within(inUs(t, cells[6]), "<=", 1000*parsed(t, limit[2]), 50))
			default:
				parts = append(parts, nil)
			}
		}
		if target != "" {
			verdicts++
			judged(t, where, verdict, parts)
		}
	}
	return verdicts
}
