package main

import (
	"strings"
	"testing"
)

const trace = `1000000 7 7 begin cuInit 0
2000000 7 8 bus from 33554432
4000000 7 8 free from 33554432
4100000 7 9 begin cuMemUnmap 0
3000000 9 9 bus to 1000000
4500000 7 8 bus from 2000000
4300000 7 9 end cuMemUnmap 0
5500000 7 8 free from 2000000
6000000 9 9 free to 1000000
`

// The output has a gap of the bus with what the process called in it. Processes and directions are apart, and times in order.
func TestTimeline(t *testing.T) {
	t.Parallel()
	events, err := read(strings.NewReader(trace))
	if err != nil {
		t.Fatal(err)
	}
	var told strings.Builder
	tell(&told, events)
	want := `process 7 from the device: 2 copies, 35.6 MB, from 1.00 to 4.50; busy 3.00, idle between copies 0.50
	idle 0.50 at 3.00: cuMemUnmap 0.20
process 9 to the device: 1 copies, 1.0 MB, from 2.00 to 5.00; busy 3.00, idle between copies 0.00
`
	if told.String() != want {
		t.Errorf("told is\n%s\nwant\n%s", told.String(), want)
	}
	if _, err := read(strings.NewReader("1 2 three\n")); err == nil {
		t.Error("a broken line is read")
	}
}
