// Package disk applies the changes of a plan to a gateway's data directory, and describes its content. It implements
// plan.State and plan.Manifest.
//
// # Promises
//
// A reader sees the old or the new content of each file, never a part of it. A replaced file stays in staging until step 8 below. In
// step 4 its content gets a name in lost+found, unless git has that content, or the gateway only rewrote git's without changing its
// meaning. If the process dies at any instant, or the power fails, the next Open brings the directory to the new commit or back to
// the old one, without help. No link in the data directory leads the package out of it.
//
// Not promised: if a process opened a file before it was replaced, and writes to the open file after step 4 below has compared
// it, these writes are lost. Extended attributes and ACLs are not preserved, and a directory that a rollback makes again has the owner
// of its parent. Outside Linux the promises are weaker; see safe/ops_other.go.
//
// # Files in .stoker
//
//	manifest      the owned files: see format.Manifest
//	journal       the sync that is being applied: see format.Journal
//	undo          the journal, under this name while its sync is rolled back
//	staging/      slots, one per change: each holds the new file before the names move, and the replaced file afterwards;
//	              in a large run, also new directories with all their files
//	areas         the directories with a .stoker/staging of their own, because they are separate mounts
//	modes         an empty file that exists for a moment, to detect whether the volume keeps modes
//	*.new         a file that is being written, until it is renamed
//	restore.path  the path of a file that is being replaced, while that path has no file
//	lost+found/   <UTC time>-<commit>/<path>, and the index <UTC time>-<commit>.jsonl with the reasons: see package lostfound
//	snapshots/    <gateway>-<UTC time>/: what one sync displaced: see package snapshot
//	audit.jsonl   the audit record: see package records
//	history/      <gateway>-diff-<UTC time>.json: what the last syncs changed
//	note-*        small records that the agent reads after a restart
//	backups/      <gateway>-<UTC time>.gwbk: Ignition's own backups of the gateway
//	scratch       the archive that is being restored; the name is removed as soon as the file is open
//	lock          the agent that writes holds a lock on this file: see package lock
//
// What has one of these names but is not the agent's is renamed to <name>.damaged.
//
// # How a sync survives a crash
//
// Each phase is durable before the next one starts, unless its text says otherwise:
//
//  1. The new files are in staging, on the mount of their destination: each in a slot or, if a large run creates its directory, in
//     that directory, which moves with one rename; see stagedTrees.
//  2. The journal is renamed into place. It has all changes, the steps of phase 3, and the inode of every staged file.
//  3. The steps: names move between staging and the data directory; directories are created and removed. The steps are not
//     durable yet, and may reach the disk in any order.
//  4. The replaced files are compared with what the plan saw. Those that lost+found must keep get a hard link there or,
//     without hard links, a copy. If the sync takes a snapshot, the snapshot gets all replaced files, the journal and
//     the old manifest in the same way.
//  5. All moved names are made durable.
//  6. The new manifest is renamed into place. This is the point of no return.
//  7. If the sync takes no snapshot, the older snapshots that can no longer be restored are removed. Then the journal is removed.
//  8. Staging is emptied, lost+found is pruned. Not durable.
//
// A crash before 2 leaves no journal. Only staging has changed, and Open empties it.
//
// After a crash between 2 and 7, Open repeats 3 to 8. The journal is complete, because its bytes are durable before it is
// renamed into place. A step can be repeated, because its slot shows whether the step was done: if the slot still holds
// the staged file, the file has not moved. A staged file is identified by its inode, size and mtime or, if the
// directory was copied file by file meanwhile, by its bytes. If the staged file is neither in its slot nor at its
// destination, Open saves the content of the slot to lost+found and marks the manifest incomplete, so that the next plan
// compares every file. Open also marks the manifest incomplete if it is neither the one that the sync began with nor the one
// that it ends with; the journal identifies both. Replaced files stay in their slots until 8, so that 4 finds them again.
// Creating and removing directories, merging the manifest and writing lost+found can be repeated, too.
//
// After a crash between 7 and 8, Open empties staging.
//
// Every replaced or removed file keeps a name until 8. So a sync that fails in 3 to 6, for example because the disk is full, can
// be rolled back: the journal is renamed to undo, which needs no space, and from then on Open finishes the rollback instead of
// the sync. The rollback undoes the steps in reverse order, each only if its slot shows that it was done. The files of a
// directory that moved with one rename are removed, because a full disk may have no room for their slots. Then it removes the
// undo file, and 8 follows. If the gateway has written to a new file meanwhile, or has replaced it, that file stays. A sync is
// also rolled back if 4 finds files that the gateway wrote after the plan, unless lost+found may take them: see ForeignError.
//
// A journal that cannot be read was damaged after it was written, and the content of staging is unknown. Open moves all of
// staging to lost+found, removes all snapshots, and marks the manifest incomplete.
//
// # Links and races
//
// The package opens directories one name at a time, so that it never follows a link, not even one inside the data directory: on
// Linux, the kernel refuses links. There, names move by renameat2 between open directories. A replacement uses
// RENAME_EXCHANGE: the name is never missing, and the replaced file is in staging, with all that was written to it up to then.
// A new file uses RENAME_NOREPLACE. On a file system without these flags (NFS, some FUSE), the replaced file is moved aside,
// and the new file gets its name by a hard link: the name is missing for a moment, but nothing is overwritten. Without
// hard links, what the gateway writes in that moment is overwritten.
package disk
