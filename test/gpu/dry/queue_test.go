package dry

import (
	"strings"
	"testing"
)

// The queue loses no operation, in any way, on streams and with graphs. That the driver had few at a time is not seen from outside.
func TestQueueProbe(t *testing.T) {
	found, table, err := probe(t, "queue-probe", nil)
	if err != nil || len(found.Sections) != 5 {
		t.Fatalf("%v, %+v\n%s", err, found.Sections, table)
	}
	for name, ending := range found.Sections {
		if !strings.HasPrefix(ending, "done in ") {
			t.Errorf("%s: %s", name, ending)
		}
	}
	const ways, works, lengths = 6, 5 + 2 + 3, 5
	if len(found.Rows) != ways*works {
		t.Errorf("%d rows, want %d\n%s", len(found.Rows), ways*works, table)
	}
	if len(found.Figures) != ways*lengths {
		t.Errorf("%d figures, want %d\n%s", len(found.Figures), ways*lengths, table)
	}
}
