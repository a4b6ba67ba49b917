package configs

import (
	"fmt"
	"strings"
	"testing"
)

// TestMechanismRows takes every mechanism through the configuration.
func TestMechanismRows(t *testing.T) {
	for i, row := range MechanismRows {
		if row.Bit != 1<<i || row.Works&row.Auto != row.Auto || row.Works == Nowhere || row.Does == "" {
			t.Errorf("row %d: %+v", i, row)
		}
		config, err := Parse("f", fmt.Appendf(nil, "mechanisms = [%q]", row.Name))
		if err != nil || config.Mechanisms != (Mechanisms{Named: row.Bit}) {
			t.Errorf("%s: %+v, %v", row.Name, config.Mechanisms, err)
		}
		for _, other := range MechanismRows {
			want := Nowhere
			if other.Bit == row.Bit {
				want = row.Works
			}
			if got := config.Mechanisms.Where(other.Bit); got != want {
				t.Errorf("%s named: %s is used at %d, want %d", row.Name, other.Name, got, want)
			}
		}
		auto := Mechanisms{Auto: true}
		if auto.Where(row.Bit) != row.Auto || auto.Use(row.Bit) != (row.Auto != Nowhere) || auto.UseAt(row.Bit, true) != (row.Auto&UnderMPS != 0) || auto.UseAt(row.Bit, false) != (row.Auto&Apart != 0) {
			t.Errorf("auto: %s is used at %d, want %d", row.Name, auto.Where(row.Bit), row.Auto)
		}
		if (Mechanisms{}).Use(row.Bit) {
			t.Errorf("%s is used where nothing is named", row.Name)
		}
	}
	for i, row := range FallbackRows {
		if row.Bit != 1<<i || row.Name == "" || row.Of == 0 || row.Why == "" {
			t.Errorf("row %d: %+v", i, row)
		}
	}
}

// TestHintRows takes every source of hints through the configuration.
func TestHintRows(t *testing.T) {
	for i, row := range HintRows {
		if int(row.Source) != i || row.Comes == "" {
			t.Errorf("row %d: %+v", i, row)
		}
		if on := Default().Hints.Sources.Has(row.Source); on != (row.Default == "true") {
			t.Errorf("%s: on by default: %v, the row says %s", row.Name, on, row.Default)
		}
		on, off, allowed := "true", "false", "true or false"
		if row.Default == "[]" {
			on, off, allowed = `["a"]`, "[]", "an array of "
		}
		for value, want := range map[string]bool{on: true, off: false} {
			config, err := Parse("f", fmt.Appendf(nil, "hints.%s = %s", row.Name, value))
			others := ^HintSources(1 << row.Source)
			if err != nil || config.Hints.Sources.Has(row.Source) != want || config.Hints.Sources&others != Default().Hints.Sources&others {
				t.Errorf("%s = %s: %b, %v", row.Name, value, config.Hints.Sources, err)
			}
		}
		if config, err := Parse("f", []byte(HintsFrom(row.Source))); err != nil || on != `["a"]` && config.Hints.Sources != 1<<row.Source {
			t.Errorf("hints from %s: %b, %v", row.Name, config.Hints.Sources, err)
		}
		if _, err := Parse("f", fmt.Appendf(nil, "hints.%s = 1", row.Name)); err == nil || !strings.Contains(err.Error(), "hints."+row.Name+" = 1: must be "+allowed) {
			t.Errorf("%s = 1: %v", row.Name, err)
		}
	}
}
