package decide

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
)

const (
	snapshot = "line-1-20300101-000000"
	request  = snapshot + " 2030-01-02T00:00:00Z"
)

var day = time.Date(2030, 1, 2, 0, 0, 0, 0, time.UTC)

// asked is what is asked of line-1 an hour after the request to restore. Commit two is the target and on the disk.
func asked(change ...func(*Asked)) Asked {
	a := Asked{Gateway: "line-1", Commit: two, Disk: two, Now: day.Add(time.Hour), Requests: annotation.Requests{Restore: request, Retry: one.String() + " r"}}
	for _, c := range change {
		c(&a)
	}
	return a
}

func TestRestore(t *testing.T) {
	done := asked().RestoreOf(snapshot)
	done.Done = true
	rolledBack := RestoreNote{Snapshot: snapshot, Commit: two, Retry: one.String() + " r", Done: true, Trigger: v1alpha1.TriggerScanFailure, Cause: "why", RolledBackFrom: two}
	lapsed := RestoreNote{Request: request, Commit: one, RolledBackFrom: one}
	none := func(a *Asked) { a.Restore = "" }
	commit := func(id plan.ID) func(*Asked) { return func(a *Asked) { a.Commit = id } }
	force := func(a *Asked) { a.Force = "now" }
	retry := func(id plan.ID) func(*Asked) { return func(a *Asked) { a.Retry = id.String() + " later" } }
	later := func(a *Asked) { a.Now = a.Now.Add(24 * time.Hour) }
	newVolume := func(a *Asked) { a.Disk = plan.ID{} }
	for name, c := range map[string]struct {
		on     RestoreNote
		a      Asked
		want   string // the snapshot that replaces the target
		done   bool
		remark string
	}{
		"never restored":                                       {RestoreNote{}, asked(none), "", false, ""},
		"a new request":                                        {RestoreNote{}, asked(), snapshot, false, ""},
		"a new request for another gateway":                    {RestoreNote{}, asked(func(a *Asked) { a.Gateway = "line-2" }), "", false, ""},
		"a new request replaces a restore":                     {done, asked(func(a *Asked) { a.Restore = "line-1-20300101-111111 " + day.Format(time.RFC3339) }), "line-1-20300101-111111", false, ""},
		"a new request after an automatic rollback":            {rolledBack, asked(), snapshot, false, ""},
		"the same request, files not written":                  {asked().RestoreOf(snapshot), asked(), snapshot, false, ""},
		"the same request, files written":                      {done, asked(), snapshot, true, ""},
		"the same request after it lapsed":                     {lapsed, asked(), "", false, ""},
		"the request was removed":                              {done, asked(none), snapshot, true, ""},
		"another target":                                       {done, asked(commit(one)), "", true, ""},
		"a new force-sync request":                             {done, asked(force), snapshot, true, ""},
		"rolled back automatically, a new force-sync request":  {rolledBack, asked(none, force), snapshot, true, ""},
		"damaged, then a new force-sync request":               {asked(commit(one)).Damaged(), asked(commit(one), force), UnknownSnapshot, true, ""},
		"a request to retry the target":                        {done, asked(retry(two)), "", true, ""},
		"a request to retry another commit":                    {done, asked(retry(one)), snapshot, true, ""},
		"rolled back automatically":                            {rolledBack, asked(none), snapshot, true, ""},
		"rolled back automatically, retried":                   {rolledBack, asked(none, retry(two)), "", true, ""},
		"an old request on a new volume":                       {RestoreNote{}, asked(newVolume, later), "", false, "is older than this data volume; ask again"},
		"a request of today on a new volume":                   {RestoreNote{}, asked(newVolume), snapshot, false, ""},
		"an old request on this volume":                        {RestoreNote{}, asked(later), snapshot, false, ""},
		"a request of the spec on a new volume":                {RestoreNote{}, asked(newVolume, later, func(a *Asked) { a.Restore = snapshot }), snapshot, false, ""},
		"an old request on a new volume, files written":        {done, asked(newVolume, later), snapshot, true, ""},
		"an old request of another gateway, on a new volume":   {RestoreNote{}, asked(newVolume, later, func(a *Asked) { a.Gateway = "x" }), "", false, ""},
		"damaged, the target is not on the disk":               {asked(commit(one)).Damaged(), asked(commit(one)), UnknownSnapshot, true, ""},
		"damaged, the target is on the disk":                   {asked().Damaged(), asked(), "", false, ""},
		"damaged, the target is on the disk, the next request": {asked(none).Damaged(), asked(), snapshot, false, ""},
		"damaged, then retried":                                {asked(commit(one)).Damaged(), asked(commit(one), func(a *Asked) { a.Retry = one.String() + " later" }), "", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n, remark := Restore(c.on, c.a)
			assert.Equal(t, c.want, n.Snapshot)
			assert.Equal(t, c.done, n.Done)
			assert.Contains(t, remark, c.remark)
			assert.Equal(t, c.remark == "", remark == "")
			assert.Equal(t, c.on.RolledBackFrom, n.RolledBackFrom, "an automatic rollback happens once for each commit")
			again, _ := Restore(n, c.a)
			assert.Equal(t, n, again, "nothing new was asked")
		})
	}
}
