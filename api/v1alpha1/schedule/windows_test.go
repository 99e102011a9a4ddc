package schedule_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/schedule"
)

func TestWindows(t *testing.T) {
	nights := v1alpha1.MaintenanceWindow{Name: "nights", Schedule: "0 22 * * *", Duration: "8h"}
	weekdays := v1alpha1.MaintenanceWindow{Name: "weekdays", Schedule: "0 6 * * 1-5", Duration: "12h"}
	freeze := v1alpha1.MaintenanceWindow{Name: "freeze", Kind: v1alpha1.WindowDeny, Schedule: "0 0 24 12 *", Duration: "72h"}
	always := v1alpha1.MaintenanceWindow{Name: "always", Kind: v1alpha1.WindowDeny, Schedule: "* * * * *", Duration: "1h"}
	leap := v1alpha1.MaintenanceWindow{Name: "leap", Schedule: "0 0 29 2 *", Duration: "1h"} // after 2096, not before 2104
	berlin := nights
	berlin.TimeZone = "Europe/Berlin"
	for name, tt := range map[string]struct {
		windows []v1alpha1.MaintenanceWindow
		gateway string
		at      string
		closed  string // the window; "" if syncs are allowed
		until   string
	}{
		"no windows":                     {at: "2026-11-24T12:00:00Z"},
		"before a window":                {windows: []v1alpha1.MaintenanceWindow{nights}, at: "2026-11-24T21:59:59Z", closed: "nights", until: "2026-11-24T22:00:00Z"},
		"the first moment":               {windows: []v1alpha1.MaintenanceWindow{nights}, at: "2026-11-24T22:00:00Z"},
		"after midnight":                 {windows: []v1alpha1.MaintenanceWindow{nights}, at: "2026-11-25T05:59:59Z"},
		"the end":                        {windows: []v1alpha1.MaintenanceWindow{nights}, at: "2026-11-25T06:00:00Z", closed: "nights", until: "2026-11-25T22:00:00Z"},
		"the first of two":               {windows: []v1alpha1.MaintenanceWindow{nights, weekdays}, at: "2026-11-29T12:00:00Z", closed: "nights", until: "2026-11-29T22:00:00Z"},
		"one of two is open":             {windows: []v1alpha1.MaintenanceWindow{nights, weekdays}, at: "2026-11-24T12:00:00Z"},
		"one of two is too far ahead":    {windows: []v1alpha1.MaintenanceWindow{nights, leap}, at: "2097-01-01T12:00:00Z", closed: "nights", until: "2097-01-01T22:00:00Z"},
		"the first is too far ahead":     {windows: []v1alpha1.MaintenanceWindow{leap, nights}, at: "2097-01-01T12:00:00Z", closed: "nights", until: "2097-01-01T22:00:00Z"},
		"denied":                         {windows: []v1alpha1.MaintenanceWindow{freeze}, at: "2026-12-25T12:00:00Z", closed: "freeze", until: "2026-12-27T00:00:00Z"},
		"denying window only":            {windows: []v1alpha1.MaintenanceWindow{freeze}, at: "2026-12-27T00:00:00Z"},
		"denied beside allowed":          {windows: []v1alpha1.MaintenanceWindow{nights, freeze}, at: "2026-12-25T23:00:00Z", closed: "freeze", until: "2026-12-27T00:00:00Z"},
		"denied, then not allowed":       {windows: []v1alpha1.MaintenanceWindow{weekdays, freeze}, at: "2026-12-25T23:00:00Z", closed: "freeze", until: "2026-12-28T06:00:00Z"},
		"always denied":                  {windows: []v1alpha1.MaintenanceWindow{always}, at: "2026-12-25T23:00:00Z", closed: "always"},
		"winter time":                    {windows: []v1alpha1.MaintenanceWindow{berlin}, at: "2026-11-24T20:59:59Z", closed: "nights", until: "2026-11-24T21:00:00Z"},
		"summer time":                    {windows: []v1alpha1.MaintenanceWindow{berlin}, at: "2026-07-24T19:59:59Z", closed: "nights", until: "2026-07-24T20:00:00Z"},
		"8 hours, one hour repeated":     {windows: []v1alpha1.MaintenanceWindow{berlin}, at: "2026-10-25T04:00:00Z", closed: "nights", until: "2026-10-25T21:00:00Z"},
		"8 hours, one hour skipped":      {windows: []v1alpha1.MaintenanceWindow{berlin}, at: "2026-03-29T04:59:59Z"},
		"selected gateway":               {windows: []v1alpha1.MaintenanceWindow{gateways(nights, "area-*")}, gateway: "area-4", at: "2026-11-24T12:00:00Z", closed: "nights", until: "2026-11-24T22:00:00Z"},
		"another gateway":                {windows: []v1alpha1.MaintenanceWindow{gateways(nights, "area-*", "x")}, gateway: "line-1", at: "2026-11-24T12:00:00Z"},
		"another gateway of two windows": {windows: []v1alpha1.MaintenanceWindow{gateways(nights, "area-4"), gateways(freeze, "line-1")}, gateway: "line-1", at: "2026-12-24T12:00:00Z", closed: "freeze", until: "2026-12-27T00:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			w, errs := schedule.ParseWindows(tt.windows, tt.gateway)
			require.Empty(t, errs)
			at, err := time.Parse(time.RFC3339, tt.at)
			require.NoError(t, err)
			closed, until := w.Closed(at)
			assert.Equal(t, tt.closed, closed)
			if tt.closed == "" {
				assert.True(t, at.Equal(until), "an open window has no time to wait for")
				return
			}
			got := ""
			if !until.IsZero() {
				got = until.UTC().Format(time.RFC3339)
			}
			assert.Equal(t, tt.until, got)
		})
	}
}

func gateways(w v1alpha1.MaintenanceWindow, names ...string) v1alpha1.MaintenanceWindow {
	w.Gateways = names
	return w
}

// A start in the hour that a clock skips does not happen, and one in the hour that it repeats happens at least once.
func TestWindowsAtClockChange(t *testing.T) {
	w, errs := schedule.ParseWindows([]v1alpha1.MaintenanceWindow{{Name: "early", Schedule: "30 2 * * *", Duration: "1h", TimeZone: "Europe/Berlin"}}, "")
	require.Empty(t, errs)
	closed, until := w.Closed(time.Date(2026, 3, 29, 0, 0, 0, 0, time.UTC))
	assert.Equal(t, "early", closed)
	assert.Equal(t, time.Date(2026, 3, 30, 0, 30, 0, 0, time.UTC), until.UTC())
	closed, _ = w.Closed(time.Date(2026, 10, 25, 0, 30, 0, 0, time.UTC))
	assert.Empty(t, closed)
}

func TestWindowsValidation(t *testing.T) {
	good := v1alpha1.MaintenanceWindow{Name: "a", Schedule: "0 22 * * *", Duration: "8h"}
	for name, tt := range map[string]struct {
		change func(*v1alpha1.MaintenanceWindow)
		field  string
	}{
		"name":                    {func(w *v1alpha1.MaintenanceWindow) { w.Name = "A b" }, "name"},
		"no name":                 {func(w *v1alpha1.MaintenanceWindow) { w.Name = "" }, "name"},
		"kind":                    {func(w *v1alpha1.MaintenanceWindow) { w.Kind = "maybe" }, "kind"},
		"no duration":             {func(w *v1alpha1.MaintenanceWindow) { w.Duration = "" }, "duration"},
		"short":                   {func(w *v1alpha1.MaintenanceWindow) { w.Duration = "59s" }, "duration"},
		"long":                    {func(w *v1alpha1.MaintenanceWindow) { w.Duration = "169h" }, "duration"},
		"four fields":             {func(w *v1alpha1.MaintenanceWindow) { w.Schedule = "0 22 * *" }, "schedule"},
		"a word":                  {func(w *v1alpha1.MaintenanceWindow) { w.Schedule = "@daily" }, "schedule"},
		"a zone":                  {func(w *v1alpha1.MaintenanceWindow) { w.Schedule = "TZ=UTC 0 22 * * *" }, "schedule"},
		"hour 25":                 {func(w *v1alpha1.MaintenanceWindow) { w.Schedule = "0 25 * * *" }, "schedule"},
		"day that does not exist": {func(w *v1alpha1.MaintenanceWindow) { w.Schedule = "0 0 30 2 *" }, "schedule"},
		"unknown time zone":       {func(w *v1alpha1.MaintenanceWindow) { w.TimeZone = "Europe/Atlantis" }, "timeZone"},
		"local time zone":         {func(w *v1alpha1.MaintenanceWindow) { w.TimeZone = "Local" }, "timeZone"},
		"a path as zone":          {func(w *v1alpha1.MaintenanceWindow) { w.TimeZone = "../../etc/passwd" }, "timeZone"},
		"a broken pattern":        {func(w *v1alpha1.MaintenanceWindow) { w.Gateways = []string{"a", "[a"} }, "gateways[1]"},
		"too many gateways":       {func(w *v1alpha1.MaintenanceWindow) { w.Gateways = strings.Split(strings.Repeat("a,", 256)+"a", ",") }, "gateways"},
	} {
		t.Run(name, func(t *testing.T) {
			w := good
			tt.change(&w)
			_, errs := schedule.ParseWindows([]v1alpha1.MaintenanceWindow{good, w}, "")
			if tt.field == "name" {
				require.NotEmpty(t, errs)
			} else {
				errs = errs[:len(errs)-1] // the last one is the repeated name
				require.Len(t, errs, 1)
			}
			assert.Equal(t, "spec.deployment.windows[1]."+tt.field, errs[0].Field)
		})
	}
	t.Run("one name twice", func(t *testing.T) {
		_, errs := schedule.ParseWindows([]v1alpha1.MaintenanceWindow{good, good}, "")
		require.Len(t, errs, 1)
		assert.Equal(t, "spec.deployment.windows[1].name", errs[0].Field)
	})
	t.Run("17 windows", func(t *testing.T) {
		_, errs := schedule.ParseWindows(make([]v1alpha1.MaintenanceWindow, 17), "")
		assert.Len(t, errs, 1)
	})
}
