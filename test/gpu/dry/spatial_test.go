package dry

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

// Each row of the matrix has these as numbers.
var numbers = []string{"n", "alone_p50", "alone_p99", "p50", "p99", "max", "p50_x", "p99_x", "left", "be_x", "be_alone_x"}

// cells says how many rows each limit of the matrix has, and checks their numbers.
func cells(t *testing.T, found probed) map[string]int {
	t.Helper()
	count := map[string]int{}
	for _, row := range found.Rows {
		if row["limit"] == nil {
			continue
		}
		count[fmt.Sprint(row["table"], ": ", row["limit"])]++
		number := map[string]float64{}
		for _, name := range numbers {
			value, ok := row[name].(float64)
			if !ok {
				t.Errorf("%s is not a number: %v", name, row)
			}
			number[name] = value
		}
		if number["n"] < 1 || number["alone_p50"] <= 0 || number["p50"] > number["p99"] || number["p99"] > number["max"] || number["left"] < 0 || number["left"] > 1 {
			t.Errorf("%v", row)
		}
	}
	return count
}

// with returns the rows of a table in which a column has a value.
func (found probed) with(table, column, value string) (rows []map[string]any) {
	for _, row := range found.Rows {
		if row["table"] == table && fmt.Sprint(row[column]) == value {
			rows = append(rows, row)
		}
	}
	return rows
}

func expectRow(t *testing.T, found probed, table, column, value string, want map[string]any) {
	t.Helper()
	rows := found.with(table, column, value)
	if len(rows) == 0 {
		t.Fatalf("%s has no row with %s = %s", table, column, value)
	}
	for name, value := range want {
		if rows[0][name] != value {
			t.Errorf("%s: %s is %v, want %v: %v", table, name, rows[0][name], value, rows[0])
		}
	}
}

// A quick run pairs each kind of best-effort work with one of requests, and the first with the last one, too.
var quickCells = map[string]int{
	"beside: priority": 8, "beside: none": 8, "beside: blocks of 100 us": 2, "beside: blocks of 40 us": 2, "beside: blocks of 2 us": 2,
	"cap: 1 an SM": 8, "cap: half": 5, "throttle: 10 us asleep": 2, "throttle: 40 us asleep": 2,
	"persistent: 64 SMs' worth": 8, "persistent: 16 SMs' worth": 8, "persistent: 112 SMs' worth": 8,
	"windows: 1 wave": 8, "windows: half a wave": 8, "windows: 4 waves": 8,
	"width: 16 SMs": 8, "width: 32 SMs": 8, "width: 64 SMs": 8, "width: 96 SMs": 8, "width: 112 SMs": 8,
}

// What else is found, as the name of a figure or fact.
var spatialFinds = []string{
	"device", "priorities of streams, low to high", "the chain of 50 kernels, alone",
	"from a block's end to the next beginning on its SM: the same launch, an urgent kernel beside blocks of 10 us",
	"from its first block's beginning to its last one's: an urgent kernel beside blocks of 100 us",
	"cuOccupancyMaxActiveBlocksPerMultiprocessor", "cuFuncSetAttribute of MAX_DYNAMIC_SHARED_SIZE_BYTES", "cuStreamCreateWithPriority",
	"two launches, one stream, the second with 120 KB of shared memory: until they have ended", "two launches, two streams: the calls",
	"from wide to 1 block an SM, blocks of 10 us: stopped", "from as wide to wide, blocks of 100 us: goes on", "clusters of 8, primary",
	"from wide to 64 SMs, blocks of 10 us: stopped", "cuGreenCtxCreate with a stream", "clusters of 8, green 8",
}

// What the simulated driver says as an H200 did; what it lacks is said, and the rest goes on.
var spatialSays = map[string]string{
	"green: SMs": "132, of 8 at least, multiples of 8", "green 64: SMs as it says": "64",
	"green 64: a kernel that was loaded in the primary context":                "CUDA_SUCCESS",
	"green: cuCtxSynchronize of the primary waits for it":                      "yes",
	"green 16: a cooperative launch of as many blocks as fit on the whole GPU": "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
	"green: the primary's stream waits for that event":                         "CUDA_SUCCESS", "green: and ends": "CUDA_SUCCESS",
	"rivals": "not here: an MPS server; see --mps",
}

func TestSpatialProbeFindsEverything(t *testing.T) {
	found, table, err := probe(t, "spatial-probe", nil)
	if err != nil || found.Mode != "streams" || len(found.Sections) != 16 {
		t.Fatalf("%v, %+v\n%s", err, found.Sections, table)
	}
	for name, ending := range found.Sections {
		if !strings.HasPrefix(ending, "done in ") {
			t.Errorf("%s: %s", name, ending)
		}
	}
	if got := cells(t, found); !maps.Equal(got, quickCells) {
		t.Errorf("rows of the matrix: %v, want %v", got, quickCells)
	}
	for name, column := range map[string]string{"shapes": "of", "placement": "first", "residency": "be", "empty": "threads", "gate": "blocks", "cap": "limit", "windows": "limit"} {
		if head := fmt.Sprintf("\n%-12s %12s ", name, column); !strings.Contains(table, head) {
			t.Errorf("no %q:\n%s", head, table)
		}
	}
	// Where blocks are, as the simulated ones say: block i on SM i, round and round, two at once.
	expectRow(t, found, "shapes", "kind", "few", map[string]any{"blocks": 16., "sms": 16., "most": 1., "fit": 4.})
	expectRow(t, found, "shapes", "kind", "full", map[string]any{"blocks": 264., "sms": 132., "most": 2., "fit": 2.})
	expectRow(t, found, "shapes", "kind", "registers", map[string]any{"registers": 255., "fit": 1.})
	expectRow(t, found, "placement", "first", "16 x 1024", map[string]any{"first_sms": 16., "second_sms": 66., "second_on_first": 16., "most": 1.})
	expectRow(t, found, "residency", "be", "spin", map[string]any{"fit": 16., "asked": 1., "says": 1., "most": 2., "sms": 132.})
	for _, gate := range []struct {
		name string
		rows int
	}{{"none", 3}, {"each thread asks", 6}, {"one asks for all", 6}} {
		if rows := found.with("empty", "gate", gate.name); len(rows) != gate.rows {
			t.Errorf("gate %s: %v", gate.name, rows)
		}
	}
	said := map[string]string{}
	for _, f := range found.Figures {
		said[f.Name] = "a figure"
		if f.N < 1 || f.P50 > f.P99 || f.P99 > f.Max || f.Unit == "" || !strings.Contains(table, f.Name) {
			t.Errorf("%+v", f)
		}
	}
	for _, f := range found.Facts {
		said[f.Name] = f.Value
	}
	for _, name := range spatialFinds {
		if said[name] == "" {
			t.Errorf("lacks %q", name)
		}
	}
	found.expectFacts(t, spatialSays)
}

// Under MPS the best-effort work is a second process's, which gets the limits of MPS in its environment.
func TestSpatialProbeUnderMPS(t *testing.T) {
	found, printed := underMPS(t, "spatial-probe", "--only", "cap,rivals")
	want := map[string]int{"cap: 1 an SM": 8, "cap: half": 5, "rivals: client priority": 8, "rivals: 50 %": 8, "rivals: 25 %": 8, "rivals: 75 %": 8}
	if got := cells(t, found); !maps.Equal(got, want) {
		t.Errorf("rows of the matrix: %v, want %v\n%s", got, want, printed)
	}
	said := map[string]string{}
	for _, f := range found.Facts {
		said[f.Name] = f.Value
	}
	for name, end := range map[string]string{"client priority": "; 100 %, priority 1", "25 %": "; 25 %, priority 0"} {
		if !strings.HasSuffix(said[name+": what the second process sees"], end) {
			t.Errorf("%s: %q", name, said)
		}
	}
}
