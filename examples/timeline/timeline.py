"""A social timeline: who follows whom, and what those whom you follow have posted, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from stretto import Depot, Module, PState, query, step, stream

TIMELINE_POSTS_MAX = 100


@dataclass
class Follow:
    user: str
    whom: str
    stop: bool = False


@dataclass
class Post:
    user: str
    number: int
    """Chosen by who posts, and rising: a post that is delivered twice is one post."""
    text: str


class Timeline(Module):
    follows = Depot(Follow, partition_by="user")
    posts = Depot(Post, partition_by="user")

    following = PState(dict[str, set[str]])
    followers = PState(dict[str, set[str]])
    timelines = PState(dict[str, dict[tuple[int, str], Post]])
    """By reader: minus the number and the author, so that the newest is the first."""
    written = PState(dict[str, int])

    @stream(follows, retry="all-after")
    def follow(self, follow: Follow) -> None:
        """What a person does stays in order, also when it is tried again."""
        if follow.stop:
            self.following.discard(follow.user, follow.whom)
        else:
            self.following.add(follow.user, follow.whom)
        self.followed.at(follow.whom)(follow)

    @step
    def followed(self, follow: Follow) -> None:
        if follow.stop:
            self.followers.discard(follow.whom, follow.user)
        else:
            self.followers.add(follow.whom, follow.user)

    @stream(posts)
    def post(self, post: Post) -> int:
        """Returns how many readers it has, which who appends with ack=all is told."""
        self.written.set(post.user, value=max(post.number, self.written.get(post.user, default=0)))
        readers = list(self.followers.keys(post.user))
        for reader in [post.user, *readers]:
            self.deliver.at(reader)(reader, post)
        return len(readers)

    @step
    def deliver(self, reader: str, post: Post) -> None:
        self.timelines.set(reader, (-post.number, post.user), value=post)
        for oldest in list(islice(self.timelines.keys(reader), TIMELINE_POSTS_MAX, None)):
            self.timelines.delete(reader, oldest)

    @query(key="user")
    def timeline(self, user: str, limit: int = 20) -> list[Post]:
        return [post for _, post in islice(self.timelines.items(user), limit)]
