package main

import (
	"fmt"
	"time"
)

// goal is a line of the report's end.
type goal struct {
	what, measured string
	verdict        string // met, missed
}

func verdict(met bool) string {
	if met {
		return "met"
	}
	return "**missed**"
}

// goals holds the figures against what the project wants of itself. What was not measured is left out.
func (r results) goals(s settings) []goal {
	var all []goal
	for _, size := range s.sizes {
		g := judge{r, size, nil}
		for _, agent := range []string{once, resident} {
			if size.name == "L" {
				g.atMost(1.25, "one", agent, fetch)
				g.atMost(1.25, "merge", agent, fetch)
				g.faster(25, "one", agent, rsync)
				g.faster(25, "merge", agent, rsync)
			}
			if size.name == "M" {
				g.faster(12, "one", agent, rsync)
			}
		}
		if size.name == "M" || size.name == "L" {
			g.atMost(0.75, "first", once, rsync)
		}
		if size.name == "L" {
			g.memory(28, "one")
			g.memory(52, "first")
			g.idle()
		}
		g.small("one")
		g.small("merge")
		g.lostStore()
		g.disk()
		all = append(all, g.found...)
	}
	return all
}

type judge struct {
	r     results
	size  size
	found []goal
}

func (g *judge) key(c, who string) key { return key{g.size.name, c, who} }

func (g *judge) add(met bool, what, measured string) {
	g.found = append(g.found, goal{g.size.name + ": " + what, measured, verdict(met)})
}

func title(name string) string {
	for _, c := range cases {
		if c.name == name {
			return c.title
		}
	}
	return name
}

func (g *judge) walls(c, who, peer string) (mine, theirs time.Duration, ok bool) {
	mine, found := median(g.r, g.key(c, who), wall)
	theirs, foundToo := median(g.r, g.key(c, peer), wall)
	return mine, theirs, found && foundToo && theirs > 0
}

// atMost wants a wall time of at most factor times that of a peer.
func (g *judge) atMost(factor float64, c, who, peer string) {
	if mine, theirs, ok := g.walls(c, who, peer); ok {
		ratio := float64(mine) / float64(theirs)
		g.add(ratio <= factor, fmt.Sprintf("%s, %s: at most %.2f × %s", title(c), who, factor, peer), fmt.Sprintf("%.2f ×", ratio))
	}
}

// faster wants a wall time that is factor times shorter than that of a peer.
func (g *judge) faster(factor float64, c, who, peer string) {
	if mine, theirs, ok := g.walls(c, who, peer); ok {
		ratio := float64(theirs) / float64(mine)
		g.add(ratio >= factor, fmt.Sprintf("%s, %s: at least %.0f times faster than %s", title(c), who, factor, peer), fmt.Sprintf("%.1f times", ratio))
	}
}

func (g *judge) memory(limit int64, c string) {
	if n, ok := median(g.r, g.key(c, once), anon); ok && n > 0 {
		g.add(n <= limit<<20, fmt.Sprintf("%s: at most %d MiB of anonymous memory", title(c), limit), mebibytes(n)+" MiB")
	}
}

// idle wants a sync that has nothing to do to cost the resident agent almost nothing.
func (g *judge) idle() {
	k := g.key("nothing", resident)
	used, ok := median(g.r, k, cpu)
	if !ok || used == 0 { // a system that does not tell
		return
	}
	asked, _ := median(g.r, k, fetches)
	g.add(used <= 10*time.Millisecond && asked == 0, "nothing to do: no git object, at most 10 ms of CPU in the resident agent (reading its file and asking git are in the figure)",
		fmt.Sprintf("%d fetches, %.1f ms", asked, float64(used)/float64(time.Millisecond)))
}

// small wants a one-file commit to download not much more than that file.
func (g *judge) small(c string) {
	k := g.key(c, once)
	bytes, ok := median(g.r, k, pack)
	if !ok {
		return
	}
	met := true
	for _, s := range g.r[k] {
		met = met && s.pack <= 1000+s.changed
	}
	file, _ := median(g.r, k, changed)
	g.add(met, title(c)+": at most 1 kB of pack beside the file", fmt.Sprintf("%d bytes for a file of %d", bytes, file))
}

func (g *judge) lostStore() {
	if asked, ok := median(g.r, g.key("lost", once), fetches); ok {
		g.add(asked == 0, title("lost")+": the ref advertisement only", fmt.Sprintf("%d fetches", asked))
	}
	k := g.key("late", once)
	if bytes, ok := median(g.r, k, pack); ok {
		file, _ := median(g.r, k, changed)
		limit := int64(80*g.size.files) + file
		g.add(bytes <= limit, title("late")+": at most 80 bytes a file and the changed file", fmt.Sprintf("%d bytes; %d allowed", bytes, limit))
	}
}

// disk compares with what a bare shallow clone of git takes, which is the packed tip.
func (g *judge) disk() {
	mine, ok := median(g.r, g.key("first", once), kept)
	tip, okToo := median(g.r, g.key("first", fetch), pack)
	if ok && okToo && tip > 0 {
		ratio := float64(mine) / float64(tip)
		g.add(ratio <= 1.2, "disk beside the live data: at most 1.2 × the packed tip", fmt.Sprintf("%.2f ×", ratio))
	}
}
