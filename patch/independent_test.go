package patch

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	mnemonic = regexp.MustCompile(`^(?:\{ *)?(?:@!?U?P\w+ )?(\w+)(\S*)`)
	dropped  = regexp.MustCompile(`\bATOMG\S* PT, RZ, `)
	ordered  = regexp.MustCompile(`\.(?:STRONG|MMIO|NA|LU)\b`)
)

// checkIndependence checks, by the disassembler's names, what is said of a kernel that is guarded, and the table of operations.
func checkIndependence(t *testing.T, section string, code []byte, lines []line, k *Kernel) {
	t.Helper()
	known := make(map[string]bool)
	for _, names := range harmless {
		for _, name := range strings.Fields(names) {
			known[name] = true
		}
	}
	against := ""
	for _, l := range lines {
		m := mnemonic.FindStringSubmatch(l.text)
		if m == nil {
			t.Fatalf("%s: no instruction: %s", section, l.text)
		}
		name, rest := m[1], m[2]
		op := le.Uint16(code[l.offset:]) & operation
		if names := strings.Fields(harmless[op]); len(names) > 0 && !slices.Contains(names, name) {
			t.Errorf("%s: operation %#x is %s, not %v", section, op, l.text, names)
		}
		reads := (name == "LD" || name == "LDG") && ordered.MatchString(rest) || name == "ATOMG" && !dropped.MatchString(l.text)
		calls := name == "CALL" && (!strings.HasPrefix(rest, ".REL") || !strings.Contains(l.text, "`(<+") && !strings.Contains(l.text, "`($"))
		if against == "" && (reads || calls || !known[name]) {
			against = l.text
		}
	}
	if k.Independent == (against != "") || k.Independent != (k.Dependence == "") {
		t.Errorf("%s: independent: %v (%q), with %q", section, k.Independent, k.Dependence, against)
	}
	name := strings.TrimPrefix(section, ".text.")
	if strings.HasPrefix(name, "waits_") && k.Independent {
		t.Errorf("%s: its blocks can wait", section)
	}
	if strings.HasPrefix(name, "free_") && !k.Independent && !strings.Contains(k.Dependence, callsElsewhere) {
		t.Errorf("%s: its blocks cannot wait, but: %s", section, k.Dependence)
	}
}

func (c *cubin) code(section string) []byte {
	for _, s := range c.sections {
		if s.name == section {
			return s.data
		}
	}
	return nil
}
