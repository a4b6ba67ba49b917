package program

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The questions have the numbers and the layout that the program's header says.
func TestQuestionsAreTheHeaders(t *testing.T) {
	text, err := os.ReadFile("../far/helper.h")
	if err != nil {
		t.Fatal(err)
	}
	header := string(text)
	list := header[strings.Index(header, "enum gp_helper_what {"):]
	names := regexp.MustCompile(`(?m)^\tGP_HELPER_(\w+),`).FindAllStringSubmatch(list[:strings.Index(list, "};")], -1)
	want := map[string]int{"STARTED": started, "FILE": keep, "CLOSE": closeFile, "LOCK": lockFile, "CONNECT": connect, "OPEN": openFile, "VIEW": view, "MAP": mapPart,
		"ATTACH": attach, "MOVE": move, "ISOLATE": isolate, "FREE": free, "MEMORY": memory}
	if len(names) != len(want) {
		t.Fatalf("%d questions, must be %d", len(names), len(want))
	}
	for i, name := range names {
		if number, known := want[name[1]]; !known || number != i {
			t.Errorf("GP_HELPER_%s is %d, here %d (%t)", name[1], i, number, known)
		}
	}
	if !strings.Contains(header, "GP_HELPER_SOCKET = "+strconv.Itoa(socket)+" ") {
		t.Errorf("the socket is not %d", socket)
	}
	if !strings.Contains(header, "\tuint64_t what, a, b, c, d, e;\n\tchar text["+strconv.Itoa(longest)+" - "+strconv.Itoa(textAt)+"];") {
		t.Error("a question has another layout")
	}
}

func TestQuestion(t *testing.T) {
	q := question(lockFile, 1, 2, 3)
	if len(q) != textAt || q[0] != lockFile || q[8] != 1 || q[16] != 2 || q[24] != 3 || q[32] != 0 {
		t.Errorf("%v", q)
	}
}
