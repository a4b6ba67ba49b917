package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// table prints rows of cells in columns.
type table struct{ writer *tabwriter.Writer }

func newTable(out io.Writer, columns ...string) table {
	t := table{tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
	t.row(columns...)
	return t
}

func (t table) row(cells ...string) { fmt.Fprintln(t.writer, strings.Join(cells, "\t")) }

// end writes the table.
func (t table) end() error {
	if err := t.writer.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	return nil
}
