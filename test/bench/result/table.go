package result

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table prints rows of cells in columns.
type Table struct{ writer *tabwriter.Writer }

// NewTable begins a table with a line of names of columns.
func NewTable(out io.Writer, columns ...string) Table {
	t := Table{tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
	t.Row(columns...)
	return t
}

// Row adds a line.
func (t Table) Row(cells ...string) { fmt.Fprintln(t.writer, strings.Join(cells, "\t")) }

// End writes the table.
func (t Table) End() error {
	if err := t.writer.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	return nil
}
