package planner_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
)

func id(b byte) plan.ID { return plan.ID{b, b, b, b} }

func TestPlanText(t *testing.T) {
	c := &plan.Changes{
		From: id(0xab), To: id(0xcd),
		List: []plan.Change{
			{Op: plan.Adopt, Path: "config/a.json"},
			{Op: plan.Create, Path: "config/b.json"},
			{Op: plan.Update, Path: "config/c.json", ID: id(1), FoundID: id(2)},
			{Op: plan.Update, Path: "config/d.json", ID: id(1), FoundID: id(1)},
			{Op: plan.Update, Path: "config/e.json", ID: id(1), FoundID: id(2), Conflict: true},
			{Op: plan.Delete, Path: "config/f.json"},
			{Op: plan.Delete, Path: "config/g\nx\x1b[2J.json", Conflict: true},
			{Op: plan.Keep, Path: "config/h.json", Found: plan.Stat{Kind: plan.File}},
			{Op: plan.Release, Path: "config/i.json", Found: plan.Stat{Kind: plan.File}},
			{Op: plan.Release, Path: "config/j.json"},
		},
		Held:     &plan.Held{Reason: v1alpha1.ReasonMassDeletion, Message: "2 files of 3 would be deleted"},
		Warnings: []string{"submodule x is skipped"},
	}
	const want = `abababa → cdcdcdc: 1 created, 3 updated, 2 deleted, 1 kept, 1 adopted, 2 released, 2 to lost+found
held (MassDeletion): 2 files of 3 would be deleted
+ config/b.json
~ config/c.json
~ config/d.json (mode)
! config/e.json (the gateway's version goes to lost+found)
- config/f.json
! "config/g\nx\x1b[2J.json" (deleted; the gateway's version goes to lost+found)
= config/h.json (kept: the gateway's version)
= config/i.json (released: the file stays)
= config/j.json (already deleted)
= config/a.json (adopted)
warning: submodule x is skipped
`
	assert.Equal(t, want, c.String())
	assert.Equal(t, c.String(), c.String(), "the text is deterministic")
}

func TestEmptyPlanText(t *testing.T) {
	assert.Equal(t, "first sync → cdcdcdc: nothing to do", (&plan.Changes{To: id(0xcd)}).Summary())
}

func TestLargePlanTextIsBounded(t *testing.T) {
	c := &plan.Changes{To: id(1)}
	for i := range 1000 {
		c.List = append(c.List, plan.Change{Op: plan.Adopt, Path: fmt.Sprintf("a/%03d", i)})
	}
	c.List = append(c.List, plan.Change{Op: plan.Create, Path: "b"})
	text := c.String()
	assert.Equal(t, 202, strings.Count(text, "\n"))
	assert.Contains(t, text, "\n+ b\n", "written files come first")
	assert.True(t, strings.HasSuffix(text, "… and 801 more\n"))
}
