package format

import "testing"

func TestNothingIsReportedAfterTheReturn(t *testing.T) {
	var told []string
	r, stop := Request{Progress: func(doing string) { told = append(told, doing) }}.untilReturn()
	r.Progress("making a file system")
	stop()
	r.Progress("checking the file system")
	if len(told) != 1 || told[0] != "making a file system" {
		t.Errorf("told %q", told)
	}
	silent, stop := Request{}.untilReturn()
	defer stop()
	silent.Progress("to nobody")
}
