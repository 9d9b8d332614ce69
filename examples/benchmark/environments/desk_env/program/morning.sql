-- The house's requests as they were this morning. Their numbers are never given twice, and what was
-- done to them can be added to and never rewritten.
create table requests (
    id integer primary key autoincrement,
    request text not null,
    room text not null,
    priority text not null check (priority in ('low', 'medium', 'high')),
    state text not null check (state in ('open', 'in work', 'done')),
    worker text not null
);
create table operations (
    number integer primary key autoincrement,
    program text not null,
    kind text not null check (kind in ('add', 'change')),
    record integer not null references requests (id),
    fields text not null
);
create trigger operations_stay before update on operations
    begin select raise(abort, 'operations are not rewritten'); end;
create trigger operations_remain before delete on operations
    begin select raise(abort, 'operations are not removed'); end;
insert into requests (id, request, room, priority, state, worker) values
    (11, 'Door squeaks', 'Library', 'low', 'open', ''),
    (12, 'Two chairs are broken', 'Hall', 'medium', 'open', ''),
    (13, 'Lamp flickers', 'Stairs', 'high', 'in work', 'Tom'),
    (14, 'Tap drips', 'Kitchen', 'medium', 'open', ''),
    (15, 'Lift stops between floors', 'Lift', 'high', 'done', 'Mara'),
    (16, 'Heater rattles', 'Hall', 'low', 'open', '');
